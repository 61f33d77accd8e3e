"""run_study: a study whose groups of questions run in actors."""

from __future__ import annotations

import dataclasses
import functools
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fastreader import study as studies
from fastreader.core.checked import checked
from fastreader.core.checks import expect
from fastreader.core.lazy import cached_property
from fastreader.data import Example
from fastreader.data.answer_cache import Cache
from fastreader.errors import FastreaderError
from fastreader.integrations.ray.actor import Outcome, ReaderReference, Work, read_items, stream
from fastreader.integrations.ray.pool import ActorPool
from fastreader.study.cached_reader import CachedReader, Meter
from fastreader.study.cells import Cell, CellGroup, GroupDone, Row, cells_of, run_group
from fastreader.study.config import Study, model_of
from fastreader.study.models import Models, load_options, loader
from fastreader.study.run import Finished


@checked
def run_study(
    study: Study,
    folder: str | os.PathLike[str],
    *,
    pool: ActorPool | None = None,
    resume: bool = False,
    progress: bool | None = None,
) -> Finished:
    """Run a study over actors, into the same folder as `fastreader.study.run_study`.

    Either function can resume a run of the other.
    Rows are written when their group of `study.batch_size` questions is done. Attention is captured in this process,
    with its own reader. Files that the study names must exist on every machine.

    Args:
        study, folder, resume, progress: see `fastreader.study.run_study`.
        pool: the actors of one reader, then of the next; its `batch_size` does not count. None for one actor.

    Raises:
        InputError: as `fastreader.study.run_study`.
        NotReloadableError: if an actor cannot load a reader.
        FastreaderError: if Ray returns no result for a group.
        MissingExtraError: if Ray is not installed.
    """
    elsewhere = functools.partial(_run_groups, pool or ActorPool())
    return studies.run_study(study, folder, resume=resume, progress=progress, elsewhere=elsewhere)


def _run_groups(
    pool: ActorPool, name: str, study: Study, examples: list[Example], groups: list[CellGroup]
) -> Iterator[GroupDone]:
    config = model_of(study, name)
    here = config.url is None and not config.quantised
    expect(here, "readers", "readers that each actor can load by name, with or without an adapter", name)
    reader = ReaderReference.of(config.model, **load_options(study, name))
    work = Work.of(reader, read_items, _StudyTask(name, study, examples))
    items = [(str(i), {"id": str(i), **dataclasses.asdict(group)}) for i, group in enumerate(groups)]
    for _, outcome in stream(pool, work, items, 1, ordered=False):
        if isinstance(outcome, FastreaderError):
            raise outcome
        rows = [(key, digest, row) for key, digest, row in outcome["rows"]]
        readers = {name: (about, Meter(**cost)) for name, (about, cost) in outcome["readers"].items()}
        yield GroupDone(readers, rows)


@dataclasses.dataclass
class _StudyTask:
    """Make the missing rows of a group, with cells and a cache of replies that an actor keeps from group to group."""

    name: str
    study: Study
    examples: list[Example]

    def __call__(self, reader: Any, groups: list[dict[str, Any]]) -> Iterator[Outcome]:
        """Yield the values of a `GroupDone` for each group."""
        for group in groups:
            wanted = set(group["questions"])
            rows: list[Row] = []
            models = self._models
            models.opened[self.name] = CachedReader(reader, self._cache, self.study.max_batch_tokens)
            questions = [example for example in self.examples if example.id in wanted]
            try:
                run_group(
                    models.open(self.name),
                    self.name,
                    questions,
                    self._cells,
                    self.examples,
                    models.open,
                    missing=set(group["keys"]),
                    write=rows.append,
                )
            except FastreaderError as error:
                yield group["id"], error
                continue
            spent = {name: dataclasses.asdict(opened.take()) for name, opened in models.opened.items()}
            readers = {name: (opened.describe(), spent[name]) for name, opened in models.opened.items()}
            yield group["id"], {"readers": readers, "rows": rows}

    @cached_property
    def _cells(self) -> list[Cell]:
        return cells_of(self.study)

    @cached_property
    def _models(self) -> Models:
        return Models(loader(self.study), self._cache, self.study.max_batch_tokens)

    @cached_property
    def _folder(self) -> tempfile.TemporaryDirectory[str]:
        return tempfile.TemporaryDirectory(prefix="fastreader-")

    @cached_property
    def _cache(self) -> Cache:
        return Cache(Path(self._folder.name) / "cache.sqlite")
