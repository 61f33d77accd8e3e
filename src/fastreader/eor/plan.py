"""List the expressions of several specifications, each once, and check that sources and models are available."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from fastreader.core.checks import expect
from fastreader.eor import spec
from fastreader.eor.spec import ChunkRerank, Compress, Node, Source

PK = "PK"
ALIASES = {"HB": "SE&PK&Wiki@20"}
"""Hybrid: the search engine's documents, the reader's own, and the first 20 of Wikipedia (App. C.1)."""


class Expressions:
    """Parsed specifications over named sources.

    Attributes:
        names: M specifications, as given.
        roots: their expressions.
        nodes: all expressions in them, each once, operands first.
    """

    def __init__(
        self,
        specs: Sequence[str],
        sources: Collection[str],
        aliases: Mapping[str, str] | None = None,
        *,
        reader: bool,
        scorer: bool = False,
    ) -> None:
        """Parse specifications and check that every source and model is available.

        Args:
            specs: M specifications (`spec.parse`).
            sources: names of the sources.
            aliases: names for expressions; `ALIASES` by default. A source of the same name takes precedence.
            reader: whether there is a reader.
            scorer: whether there is a scorer for @RR; a reader can also score.

        Raises:
            InputError: if there is no specification, one is given twice, or a source or model is missing.
            SpecError: if a specification does not parse.
        """
        expect(not isinstance(specs, str) and bool(specs), "specs", "a list of specifications", specs)
        expect(spec.REFREE not in sources, "sources", f"none named {spec.REFREE}, which has no document", list(sources))
        expect(len(set(specs)) == len(specs), "specs", "each retriever once", ", ".join(specs))
        self.names = list(specs)
        self._sources = list(sources)
        known = {name: spec.parse(text) for name, text in (ALIASES if aliases is None else aliases).items()}
        known = {name: node for name, node in known.items() if name not in self._sources}
        self.roots = [spec.expand(spec.parse(text), known) for text in self.names]
        for name, root in zip(self.names, self.roots, strict=True):
            mixed = root != Source(spec.REFREE) and Source(spec.REFREE) in spec.walk(root)
            expect(not mixed, "aliases", f"{spec.REFREE}, which has no document, only on its own", f"{name} = {root}")
        self.nodes = list(dict.fromkeys(node for root in self.roots for node in spec.walk(root)))
        having = [*self._sources, PK, spec.REFREE]
        for node in self.nodes:
            # the first specification that contains the expression
            user = next(name for name, root in zip(self.names, self.roots, strict=True) if node in spec.walk(root))
            if isinstance(node, Source):
                expect(node.name in having, "sources", f"a source {node.name!r}, which {user} needs", ", ".join(having))
            if isinstance(node, ChunkRerank):
                expect(reader or scorer, "reader", f"a scorer or a reader, since {user} re-ranks", None)
            elif self.calls_model(node):
                expect(reader, "reader", f"a reader, which writes text for {user}", None)

    def calls_model(self, node: Node) -> bool:
        """Return whether evaluating `node` itself calls the reader or the scorer."""
        return isinstance(node, (ChunkRerank, Compress)) or (node == Source(PK) and PK not in self._sources)


def sources_of(node: Node) -> list[Source]:
    """Return the sources in an expression, each once, without ReFree."""
    found = dict.fromkeys(part for part in spec.walk(node) if isinstance(part, Source) and part.name != spec.REFREE)
    return list(found)
