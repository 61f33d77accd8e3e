"""Normal forms of answers, kept: a vote asks for each several times."""

from __future__ import annotations

from functools import lru_cache

from fastreader.statistics.answers import normalise

cached_normalise = lru_cache(maxsize=1 << 16)(normalise)
