"""How many examples the fuzz tests draw: a few in every run, many in `make fuzz` and `make sanitize`."""

from __future__ import annotations

import os

import hypothesis

LONG = bool(os.environ.get("FASTREADER_FUZZ"))


def fuzz(quick: int, long: int) -> hypothesis.settings:
    """Return settings for `quick` examples, always the same ones, or with FASTREADER_FUZZ for `long` new ones."""
    checks = [hypothesis.HealthCheck.too_slow, hypothesis.HealthCheck.function_scoped_fixture]
    return hypothesis.settings(
        max_examples=long if LONG else quick,
        derandomize=not LONG,
        database=None,
        deadline=None,
        print_blob=True,
        suppress_health_check=checks,
    )
