"""Show the rows of a result as a pandas DataFrame, or as the lines of a repr."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any

from fastreader.errors import MissingExtraError

_SHOWN, _WIDTH = 12, 110  # rows and columns of a listing


def data_frame(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> Any:
    """Return a pandas DataFrame with these columns, also if there are no rows.

    Raises:
        MissingExtraError: if pandas is not installed (the extra "pandas").
    """
    try:
        import pandas
    except ImportError as error:
        raise MissingExtraError("pandas", "pandas") from error
    return pandas.DataFrame(list(rows), columns=list(columns))


def listing(head: Sequence[str], rows: Iterable[str], count: int, note: str) -> str:
    """Return the head, the first 12 of `count` rows and the note, in lines of at most 110 characters."""
    more = [f"... and {count - _SHOWN} more"] * (count > _SHOWN) + [f"note: {note}"] * bool(note)
    lines = (" ".join(line.splitlines()) for line in (*head, *islice(rows, _SHOWN), *more))
    return "\n".join(line if len(line) <= _WIDTH else f"{line[: _WIDTH - 3]}..." for line in lines)
