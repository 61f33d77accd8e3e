"""Keys of examples, under which their results are kept."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from fastreader.data.types import Example
from fastreader.errors import InputError


def keyed(examples: Iterable[Example]) -> Iterator[Example]:
    """Examples each with an id of its own: its place where it has none, a number behind one that is taken.

    Raises:
        InputError: something else is among them.
    """
    taken: dict[str, int] = {}
    for index, example in enumerate(examples):
        if not isinstance(example, Example):
            raise InputError(f"examples[{index}]: expected an Example, got {type(example).__name__}")
        key = name = str(index) if example.id is None else example.id
        while key in taken:
            taken[name] += 1
            key = f"{name}#{taken[name]}"
        taken[key] = 1
        yield replace(example, id=key)
