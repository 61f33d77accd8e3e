"""data_frame: rows as a pandas DataFrame, for results that have `to_pandas`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fastreader.errors import MissingExtraError


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
