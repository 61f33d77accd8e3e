"""Readers: which reader serves which stage of a method."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fastreader.core.protocol import ReaderProtocol
from fastreader.data.fingerprints import reader_identity
from fastreader.errors import InputError


class Readers:
    """A reader for every stage: one for all, others for stages of their own.

    Args:
        default: serves all stages that are not in `stages`.
        stages: other readers by stage.
        known: the stages there are; None allows any.

    Raises:
        InputError: if a stage is unknown, or a reader is not a reader.
    """

    def __init__(
        self,
        default: ReaderProtocol,
        stages: Mapping[str, ReaderProtocol] | None = None,
        known: Sequence[str] | None = None,
    ) -> None:
        self.default = default
        self.stages = dict(stages or {})
        self.known = known
        unknown = [] if known is None else sorted(set(self.stages) - set(known))
        if unknown:
            raise InputError(f"readers: unknown stages {', '.join(unknown)}; there are: {', '.join(known or ())}")
        for name, reader in [("reader", default), *((f"readers[{s!r}]", r) for s, r in self.stages.items())]:
            if not isinstance(reader, ReaderProtocol):
                raise InputError(f"{name}: expected a reader, got {type(reader).__name__}")

    def of(self, stage: str) -> ReaderProtocol:
        """The reader that serves `stage`."""
        return self.stages.get(stage, self.default)

    def with_stages(self, reader: ReaderProtocol, stages: Sequence[str]) -> Readers:
        """Return the same readers with `reader` serving `stages`."""
        return Readers(self.default, {**self.stages, **dict.fromkeys(stages, reader)}, self.known)

    def describe(self) -> dict[str, dict[str, str]]:
        """What serves which stage; the default under "all"."""
        return {"all": self.default.describe()} | {stage: r.describe() for stage, r in self.stages.items()}

    def guarding(self) -> dict[str, dict[str, str]]:
        """Of `describe` what a run may not change when it goes on."""
        return {stage: reader_identity(about) for stage, about in self.describe().items()}
