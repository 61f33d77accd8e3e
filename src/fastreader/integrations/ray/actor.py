"""Actor: a reader in a separate process, which turns batches of work into batches of results."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from fastreader import errors
from fastreader.errors import FastreaderError
from fastreader.integrations.ray.reference import ReaderReference

# A result's id, and its values or the error instead.
Outcome = tuple[str | None, dict[str, Any] | FastreaderError]
Task = Callable[[Any, list[Any]], Iterable[Outcome]]
_CACHE = "FASTREADER_CACHE"


@dataclass(frozen=True)
class Work:
    """What an actor needs, once.

    Attributes:
        reader: loaded by the actor.
        read: returns the items of a batch, a pyarrow Table.
        task: returns an outcome for each item of a batch.
        cache: folder of pulled models; None for the machine's own.
    """

    reader: ReaderReference
    read: Callable[[Any], list[Any]]
    task: Task
    cache: str | None

    @classmethod
    def of(cls, reader: ReaderReference, read: Callable[[Any], list[Any]], task: Task) -> Work:
        """Create it, with this process's folder of pulled models."""
        return cls(reader, read, task, os.environ.get(_CACHE))


class Actor:
    """A class for `Dataset.map_batches`.

    Batches of results have the columns id, result, error and fatal. Result and error are JSON texts: pyarrow has no
    type for lists of lists of several lengths that would not be pickled.
    """

    def __init__(self, work: Work) -> None:
        if work.cache is not None:
            os.environ[_CACHE] = work.cache
        self.work = work
        self.failure: FastreaderError | None = None
        try:
            self.reader = work.reader.load()
        except FastreaderError as error:  # raised where the results are read: Ray would report that the actor died
            self.failure = error

    def __call__(self, batch: Any) -> Any:
        """Return the results of a batch, a pyarrow Table like the batch."""
        import pyarrow as pa

        columns: dict[str, list[Any]] = {"id": [], "result": [], "error": [], "fatal": []}
        for id, outcome in self._outcomes(batch):
            failed = isinstance(outcome, FastreaderError)
            columns["id"].append(id)
            columns["result"].append(None if failed else json.dumps(outcome, ensure_ascii=False))
            columns["error"].append(written(outcome) if isinstance(outcome, FastreaderError) else None)
            columns["fatal"].append(self.failure is not None)
        text = pa.large_string()
        return pa.table(columns, pa.schema([("id", text), ("result", text), ("error", text), ("fatal", pa.bool_())]))

    def _outcomes(self, batch: Any) -> Iterator[Outcome]:
        if self.failure is not None:
            yield None, self.failure
            return
        yield from self.work.task(self.reader, self.work.read(batch))


def written(error: FastreaderError) -> str:
    """Return an error as JSON."""
    return json.dumps({"type": type(error).__name__, "message": str(error)}, ensure_ascii=False)


def raised(text: str) -> FastreaderError:
    """Return the error that `written` turned into JSON, as a FastreaderError if its class is not one of ours."""
    values = json.loads(text)
    found = getattr(errors, values["type"], FastreaderError)
    error: FastreaderError = found.__new__(found)
    error.args = (values["message"],)
    return error
