"""Convert columns to a list of objects: `datasets` keeps a list of objects as an object of lists."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np


def as_objects(columns: object) -> Any:
    """Return the objects whose values the columns hold, or the value itself if it does not have columns of one length.

    Args:
        columns: lists or arrays by name, or anything else.
    """
    if not isinstance(columns, Mapping):
        return columns
    columns = {key: value.tolist() if isinstance(value, np.ndarray) else value for key, value in columns.items()}
    lengths = {len(column) if isinstance(column, list) else -1 for column in columns.values()}
    if not columns:
        return []
    if len(lengths) != 1 or -1 in lengths:
        return columns
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
