"""What specifications need: their expressions, each once, and whether all that they name is there."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from fastreader.eor import spec
from fastreader.eor.spec import Compress, Node, Rerank, Source
from fastreader.errors import InputError

PK = "PK"
ALIASES = {"HB": "SE&PK&Wiki@20"}
"""Hybrid: the search engine's documents, the reader's own, and the first 20 of Wikipedia (App. C.1)."""


class Plan:
    """Parsed specifications over named sources.

    Attributes:
        names: M specifications, as given.
        roots: their expressions.
        nodes: all expressions in them, each once, parts before wholes.
    """

    def __init__(
        self, specs: Sequence[str], sources: Collection[str], aliases: Mapping[str, str] | None = None
    ) -> None:
        """Parse.

        Args:
            specs: M specifications (`spec.parse`).
            sources: names that the caller has something for.
            aliases: names for expressions; `ALIASES` by default. A source of the same name goes first.

        Raises:
            InputError: no specification, or one given twice.
            SpecError: a specification does not parse.
        """
        if isinstance(specs, str) or not specs:
            raise InputError(f"specs: expected a list of specifications, got {specs!r}")
        if spec.REFREE in sources:
            raise InputError(f"sources: {spec.REFREE} is the retriever without documents and names no source")
        if len(set(specs)) < len(specs):
            raise InputError(f"specs: expected each retriever once, got {', '.join(specs)}")
        self.names = list(specs)
        self._sources = list(sources)
        known = {name: spec.parse(text) for name, text in (ALIASES if aliases is None else aliases).items()}
        known = {name: node for name, node in known.items() if name not in self._sources}
        self.roots = [spec.expand(spec.parse(text), known) for text in self.names]
        for name, root in zip(self.names, self.roots, strict=True):
            if root != Source(spec.REFREE) and Source(spec.REFREE) in spec.walk(root):
                raise InputError(f"aliases: {name} comes to {root}, but {spec.REFREE}, without documents, stands alone")
        self.nodes = list(dict.fromkeys(node for root in self.roots for node in spec.walk(root)))

    def check(self, *, reader: bool, scorer: bool = False) -> None:
        """Refuse what cannot run.

        Args:
            reader: whether there is one.
            scorer: whether there is one for @RR; a reader is one too.

        Raises:
            InputError: a source that is missing, or a reader or scorer where one is needed.
        """
        for node in self.nodes:
            if isinstance(node, Source) and node.name not in (*self._sources, PK, spec.REFREE):
                having = ", ".join([*self._sources, PK, spec.REFREE])
                raise InputError(f"sources: {self._user(node)} needs a source {node.name!r}; there are {having}")
            if isinstance(node, Rerank) and not (reader or scorer):
                raise InputError(f"reader: {self._user(node)} re-ranks, which needs a scorer or a reader")
            if self.calls_reader(node) and not isinstance(node, Rerank) and not reader:
                raise InputError(f"reader: {self._user(node)} needs a reader, which writes its text")

    def calls_reader(self, node: Node) -> bool:
        """Whether evaluating `node` itself asks the reader, or the scorer in its place."""
        return isinstance(node, (Rerank, Compress)) or (node == Source(PK) and PK not in self._sources)

    def _user(self, node: Node) -> str:
        """The first specification that `node` is part of."""
        return next(name for name, root in zip(self.names, self.roots, strict=True) if node in spec.walk(root))


def sources_of(node: Node) -> list[Source]:
    """The sources in an expression, each once, without ReFree."""
    found = dict.fromkeys(part for part in spec.walk(node) if isinstance(part, Source) and part.name != spec.REFREE)
    return list(found)
