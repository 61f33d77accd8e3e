"""Parse retriever specifications, the names of Li et al. (2024, section 2.1), such as ``SE@RR@5&Wiki@5@CP``.

The grammar, tightest first: ``+`` (merge rankings, which the paper lacks), ``@RR`` (re-rank), ``@k`` (keep the first
k), ``&`` (concatenate), ``@CP`` (compress).

    retriever := parts ["@CP"]
    parts     := part ("&" part)*
    part      := NAME ("+" NAME)* ["@RR"] ["@" NUMBER]
    NAME      := a letter, then letters, digits, "_", "-" or "."

A specification has one spelling: ``str`` writes what `parse` read, character for character.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from fastreader.core.checks import check_text, expect, require
from fastreader.errors import InputError

REFREE = "ReFree"
"""The retriever without documents."""

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.\-]*", re.ASCII)
_AFTER = re.compile(r"(@RR)?(?:@([1-9][0-9]{0,8}))?", re.ASCII)
_COUNT = re.compile(r"@[1-9]")


class SpecError(InputError):
    """Raised if a specification does not parse, with a message that points at the character.

    Attributes:
        text: the specification.
        position: index of the unexpected character; the length of the text if its end is unexpected.
    """

    def __init__(self, text: str, position: int, expected: str) -> None:
        self.text, self.position = text, position
        came = repr(text[position]) if position < len(text) else "the end"
        super().__init__(
            f"retriever {text!r}, character {position + 1}: expected {expected}, got {came}\n  {text}\n  "
            + " " * position
            + "^"
        )


@dataclass(frozen=True)
class Source:
    """The passages of a named source, in its order."""

    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Fuse:
    """The passages of all parts, merged by reciprocal rank fusion."""

    parts: tuple[Node, ...]

    def __str__(self) -> str:
        return "+".join(_grouped(part, Source) for part in self.parts)


@dataclass(frozen=True)
class ChunkRerank:
    """Chunks of `inner`, best first by a scorer."""

    inner: Node

    def __str__(self) -> str:
        return f"{_grouped(self.inner, Source, Fuse)}@RR"


@dataclass(frozen=True)
class Top:
    """The first `k` passages of `inner`."""

    inner: Node
    k: int

    def __str__(self) -> str:
        return f"{_grouped(self.inner, Source, Fuse, ChunkRerank)}@{self.k}"


@dataclass(frozen=True)
class Concat:
    """The passages of all parts, concatenated."""

    parts: tuple[Node, ...]

    def __str__(self) -> str:
        return "&".join(_grouped(part, Source, Fuse, ChunkRerank, Top) for part in self.parts)


@dataclass(frozen=True)
class Compress:
    """A summary of the passages of `inner`."""

    inner: Node

    def __str__(self) -> str:
        return f"{_grouped(self.inner, Source, Fuse, ChunkRerank, Top, Concat)}@CP"


Node = Source | Fuse | ChunkRerank | Top | Concat | Compress


def parse(text: str) -> Node:
    """Parse a specification.

    Raises:
        SpecError: if it does not follow the grammar above.
    """
    check_text("specification", text, empty=True)
    parts: list[Node] = []
    at = 0
    while not parts or text.startswith("&", at):
        at += bool(parts)
        part, at = _part(text, at)
        parts.append(part)
    node = parts[0] if len(parts) == 1 else Concat(tuple(parts))
    if text.startswith("@CP", at):
        node, at = Compress(node), at + len("@CP")
        if at < len(text):
            raise SpecError(text, at, "the end, since @CP binds last")
    if at < len(text):
        raise SpecError(text, *_misplaced(text, at))
    return node


def _part(text: str, at: int) -> tuple[Node, int]:
    """Return the part that starts at `at`, and its end."""
    sources: list[Node] = []
    while not sources or text.startswith("+", at):
        at += bool(sources)
        name = _NAME.match(text, at)
        if name is None:
            raise SpecError(text, at, "a source's name, which starts with a letter")
        if name.group() == REFREE and text != REFREE:
            raise SpecError(text, at if at else len(REFREE), f"nothing besides {REFREE}, which has no document")
        sources.append(Source(name.group()))
        at = name.end()
    after = _AFTER.match(text, at)
    assert after is not None  # it matches nothing, too
    rerank, count = after.groups()
    node = sources[0] if len(sources) == 1 else Fuse(tuple(sources))
    if rerank:
        node = ChunkRerank(node)
    return (Top(node, int(count)) if count else node), after.end()


def _misplaced(text: str, at: int) -> tuple[int, str]:
    """Return the position of an error after a part, and the expected text there."""
    if text.startswith("@RR", at):
        return at, "@RR once, right after the source, since it binds tightest"
    if _COUNT.match(text, at):
        return at, "@k once a part"
    if text.startswith("@", at):
        return at + 1, "RR, CP or a number from 1 after '@'"
    if text.startswith("+", at):
        return at, "'+' between sources, before any '@', since it binds tightest"
    return at, "'+', '&', '@' or the end"


def children(node: Node) -> tuple[Node, ...]:
    """Return the operands of `node`."""
    if isinstance(node, Source):
        return ()
    return node.parts if isinstance(node, (Concat, Fuse)) else (node.inner,)


def walk(node: Node) -> Iterator[Node]:
    """Yield all expressions in `node` and `node` itself, operands first, equal ones repeatedly."""
    for child in children(node):
        yield from walk(child)
    yield node


def expand(node: Node, aliases: Mapping[str, Node], within: tuple[str, ...] = ()) -> Node:
    """Return `node` with each source named in `aliases` replaced by its expression, recursively.

    Args:
        node: the expression.
        aliases: expressions by name.
        within: names of the aliases being expanded.

    Raises:
        InputError: if an alias contains itself.
    """
    if isinstance(node, Source):
        path = " -> ".join([*within, node.name])
        require(node.name not in within, f"aliases: {node.name!r} is made from itself, through {path}")
        return expand(aliases[node.name], aliases, (*within, node.name)) if node.name in aliases else node
    if isinstance(node, (Concat, Fuse)):
        return replace(node, parts=tuple(expand(part, aliases, within) for part in node.parts))
    return replace(node, inner=expand(node.inner, aliases, within))


def _grouped(node: Node, *plain: type) -> str:
    """Return an operand as text, in parentheses, which the grammar lacks, if an alias gave a looser operation."""
    return str(node) if isinstance(node, plain) else f"({node})"


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
            specs: M specifications (`parse`).
            sources: names of the sources.
            aliases: names for expressions; `ALIASES` by default. A source of the same name takes precedence.
            reader: whether there is a reader.
            scorer: whether there is a scorer for @RR; a reader can also score.

        Raises:
            InputError: if there is no specification, one is given twice, or a source or model is missing.
            SpecError: if a specification does not parse.
        """
        expect(not isinstance(specs, str) and bool(specs), "specs", "a list of specifications", specs)
        expect(REFREE not in sources, "sources", f"none named {REFREE}, which has no document", list(sources))
        expect(len(set(specs)) == len(specs), "specs", "each retriever once", ", ".join(specs))
        self.names = list(specs)
        self._sources = list(sources)
        known = {name: parse(text) for name, text in (ALIASES if aliases is None else aliases).items()}
        known = {name: node for name, node in known.items() if name not in self._sources}
        self.roots = [expand(parse(text), known) for text in self.names]
        for name, root in zip(self.names, self.roots, strict=True):
            mixed = root != Source(REFREE) and Source(REFREE) in walk(root)
            expect(not mixed, "aliases", f"{REFREE}, which has no document, only on its own", f"{name} = {root}")
        self.nodes = list(dict.fromkeys(node for root in self.roots for node in walk(root)))
        having = [*self._sources, PK, REFREE]
        for node in self.nodes:
            # the first specification that contains the expression
            user = next(name for name, root in zip(self.names, self.roots, strict=True) if node in walk(root))
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
    found = dict.fromkeys(part for part in walk(node) if isinstance(part, Source) and part.name != REFREE)
    return list(found)
