"""Give examples the unique keys under which their results are stored."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from fastreader.core.checks import expect
from fastreader.data.types import Example


def keyed(examples: Iterable[Example]) -> Iterator[Example]:
    """Yield the examples with unique ids: the index of an example without one, and a suffix "#2" for a repeated id.

    Raises:
        InputError: if an item is not an Example.
    """
    taken: dict[str, int] = {}
    for index, example in enumerate(examples):
        expect(isinstance(example, Example), f"examples[{index}]", "an Example", example)
        key = name = str(index) if example.id is None else example.id
        while key in taken:
            taken[name] += 1
            key = f"{name}#{taken[name]}"
        taken[key] = 1
        yield replace(example, id=key)
