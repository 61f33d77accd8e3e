"""Actors: a reader in each of several processes, which turn batches of work into batches of results."""

from __future__ import annotations

import dataclasses
import inspect
import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from fastreader import errors
from fastreader.core.checks import check_keys, expect
from fastreader.data.fingerprints import reader_name
from fastreader.errors import FastreaderError, NotReloadableError
from fastreader.integrations.ray.pool import ActorPool, require_ray
from fastreader.models.loading.options import LoadOptions, from_anywhere
from fastreader.reader.reader import Reader, load_again
from fastreader.reader.session.passages import PassageReader

ReaderLike = Any  # Reader | ReaderReference | str | os.PathLike[str]


@dataclass(frozen=True)
class ReaderReference:
    """A reader that is not loaded yet.

    Attributes:
        name: of the reader, in results.
        call, arguments: what loads it.
    """

    name: str
    call: Callable[..., Reader]
    arguments: tuple[Any, ...]

    @classmethod
    def of(cls, reader: ReaderLike, **options: Any) -> ReaderReference:
        """Create a reference.

        Args:
            reader: a packaged name, a hub id, or a path that exists on every machine of the cluster. Or a reader
                that was loaded from one of these.
            **options: further arguments of `Reader.load`, for a name.

        Raises:
            NotReloadableError: if the reader was made from a model object.
            InputError: if `reader` is something else, or an option is unknown.
        """
        if isinstance(reader, cls):
            return reader
        known = {p.name: p.default for p in inspect.signature(Reader.load).parameters.values() if p.name != "model"}
        check_keys("options", options, known)
        apart = not isinstance(reader, PassageReader)
        expect(apart, "reader", "the reader without its cache, and the cache as cache=", reader)
        if isinstance(reader, Reader):
            expect(not options, "options", "none for a reader that is already loaded", sorted(options))
            call, arguments = reader.__reduce__()
            return cls(reader.name, call, arguments)
        named = isinstance(reader, (str, os.PathLike))
        expect(named, "reader", "a Reader, or the name or path of one, which each actor can load", reader)
        name = reader_name(reader)
        return cls(name, load_again, (LoadOptions(**{"model": from_anywhere(reader), **options, "name": name}),))

    def load(self) -> Reader:
        """Load the reader, with the errors of `Reader.load`."""
        return self.call(*self.arguments)


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
        failure = self.failure
        outcomes: Iterable[Outcome] = (
            self.work.task(self.reader, self.work.read(batch)) if failure is None else [(None, failure)]
        )
        for id, outcome in outcomes:
            failed = isinstance(outcome, FastreaderError)
            columns["id"].append(id)
            columns["result"].append(None if failed else json.dumps(outcome))
            columns["error"].append(written(outcome) if isinstance(outcome, FastreaderError) else None)
            columns["fatal"].append(self.failure is not None)
        text = pa.large_string()
        return pa.table(columns, pa.schema([("id", text), ("result", text), ("error", text), ("fatal", pa.bool_())]))


def written(error: FastreaderError) -> str:
    """Return an error as JSON."""
    return json.dumps({"type": type(error).__name__, "message": str(error)})


def raised(text: str) -> FastreaderError:
    """Return the error that `written` turned into JSON, as a FastreaderError if its class is not one of ours."""
    values = json.loads(text)
    found = getattr(errors, values["type"], FastreaderError)
    error: FastreaderError = found.__new__(found)
    error.args = (values["message"],)
    return error


_COLUMN = "item"


def read_items(batch: Any) -> list[Any]:
    """Return the items of a batch that `stream` made."""
    return [json.loads(text) for text in batch.column(_COLUMN).to_pylist()]


def stream(
    pool: ActorPool, work: Work, items: Sequence[tuple[str, Any]], batch_size: int, ordered: bool
) -> Iterator[tuple[str, dict[str, Any] | FastreaderError]]:
    """Yield the id of each item with its values or its error.

    Ray runs a batch again if its actor dies. An outcome that comes twice for that reason is dropped.

    Args:
        pool: the actors.
        work: what they do; it reads with `read_items`.
        items: pairs of a distinct id and JSON values.
        batch_size: number of items of a batch, at most.
        ordered: keep the order of the items; without it an outcome waits for no other batch.

    Raises:
        NotReloadableError: if an actor cannot load the reader.
        FastreaderError: if an actor died again and again in one batch, or an item has no outcome.
    """
    if not items:
        return
    ray = require_ray()
    import pyarrow as pa

    waiting = dict.fromkeys(id for id, _ in items)
    with pool.connected():
        batch_size = min(batch_size, math.ceil(len(items) / pool.actors))  # work for every actor
        tables = []
        for start in range(0, len(items), batch_size):
            texts = [json.dumps(values) for _, values in items[start : start + batch_size]]
            tables.append(pa.table({_COLUMN: pa.array(texts, pa.large_string())}))
        pool = dataclasses.replace(pool, actors=min(pool.actors, len(tables)))
        dataset = pool.map(ray.data.from_arrow(tables), Actor, {"work": work}, batch_size)
        dataset.context.enable_progress_bars = False
        dataset.context.execution_options.preserve_order = ordered
        try:
            for batch in dataset.iter_batches(batch_size=None, batch_format="pyarrow", prefetch_batches=0):
                for row in batch.to_pylist():
                    if row["fatal"]:
                        error = raised(row["error"])
                        raise NotReloadableError(
                            f"reader: expected one that every actor can load, got {work.reader.name!r}, for which an "
                            f"actor raised {type(error).__name__}: {error}"
                        ) from error
                    if row["id"] in waiting:
                        del waiting[row["id"]]
                        values = raised(row["error"]) if row["error"] is not None else json.loads(row["result"])
                        yield row["id"], values
        except (ray.exceptions.RayActorError, ray.exceptions.WorkerCrashedError) as error:
            raise FastreaderError(
                f"an actor died again and again in one batch of questions; {len(waiting)} of {len(items)} have no "
                f"result yet, those before are kept; Ray reports: {str(error).splitlines()[0]}"
            ) from error
    if waiting:
        raise FastreaderError(
            f"Ray returned no result for {len(waiting)} of {len(items)} questions: {list(waiting)[:5]}"
        )
