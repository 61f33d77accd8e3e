"""Convert rows of tables in memory, such as a `datasets.Dataset`, to the form of a file's rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from fastreader.core.checks import check_list, expect
from fastreader.data.types import Example

_COLUMNS = ("ctxs", "candidates", "retrieval_result")  # lists of objects, which a table may keep as columns


def rows_of(name: str, table: Iterable[Any]) -> Iterator[tuple[str, object]]:
    """Yield the rows of a table, or its Examples, with their places, for `parse_row`.

    A table has every key in every row, so values that are None count as missing. Lists of objects may be kept as
    columns, as `datasets` does for a `Sequence` of features.

    Args:
        name: name of the argument, for messages.
        table: yields mappings or Examples.

    Raises:
        InputError: if `table` is not a list or another iterable of rows.
    """
    check_list(name, table, of="rows")
    for number, row in enumerate(table):
        place = f"{name}[{number}]"
        if isinstance(row, Example):
            yield place, row
            continue
        expect(isinstance(row, Mapping), place, "a mapping or an Example", row)
        yield place, _present(row)


def _present(value: Any) -> Any:
    """Return a value without keys whose value is None, and with columns as lists of objects."""
    if isinstance(value, list):
        return [_present(item) for item in value]
    if not isinstance(value, Mapping):
        return value
    found = {}
    for key, item in value.items():
        if key in _COLUMNS and isinstance(item, Mapping):
            item = _objects(item)
        if item is not None:
            found[key] = _present(item)
    return found


def _objects(columns: Mapping[Any, Any]) -> Any:
    """Return the objects whose values the columns hold, or the mapping itself if the columns differ in length."""
    lengths = {len(column) if isinstance(column, list) else -1 for column in columns.values()}
    if len(lengths) != 1 or -1 in lengths:
        return columns
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
