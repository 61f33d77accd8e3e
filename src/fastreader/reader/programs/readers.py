"""Readers: the reader that serves each stage of a method."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fastreader.core.checks import check_keys, expect
from fastreader.core.protocol import ReaderProtocol
from fastreader.data.fingerprints import reader_identity


class Readers:
    """One reader for all stages, and other readers for single stages.

    Args:
        default: serves all stages that are not in `stages`.
        stages: other readers by stage.
        known: names of all stages; None allows any name.

    Raises:
        InputError: if a stage is unknown, or a reader is not a reader.
    """

    def __init__(
        self,
        default: ReaderProtocol,
        stages: Mapping[str, ReaderProtocol] | None = None,
        known: Sequence[str] | None = None,
    ) -> None:
        self.default, self.stages, self.known = default, dict(stages or {}), known
        expect(isinstance(default, ReaderProtocol), "reader", "a reader", default)
        if known is not None and self.stages:
            check_keys("readers", self.stages, known)
        for stage, reader in self.stages.items():
            expect(isinstance(reader, ReaderProtocol), f"readers[{stage!r}]", "a reader", reader)

    def of(self, stage: str) -> ReaderProtocol:
        """Return the reader that serves `stage`."""
        return self.stages.get(stage, self.default)

    def with_stages(self, reader: ReaderProtocol, stages: Sequence[str]) -> Readers:
        """Return the same readers with `reader` serving `stages`."""
        return Readers(self.default, {**self.stages, **dict.fromkeys(stages, reader)}, self.known)

    def describe(self) -> dict[str, dict[str, str]]:
        """Return the description of each stage's reader, with the default reader under "all"."""
        about = {"all": self.default.describe()}
        for stage, reader in self.stages.items():
            about[stage] = reader.describe()
        return about

    def identity(self) -> dict[str, dict[str, str]]:
        """Return the part of `describe` that must not change when a run resumes."""
        return {stage: reader_identity(about) for stage, about in self.describe().items()}
