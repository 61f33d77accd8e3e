"""Calibration for `fastreader calibrate` when no passage is marked as right."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastreader.cli.screen import say

if TYPE_CHECKING:
    from fastreader.core.protocol import ScoringReader
    from fastreader.data import Example
    from fastreader.moi import PositionBias


def measure(
    reader: ScoringReader,
    examples: Sequence[Example],
    scores: Path | None,
    *,
    limit: int | None,
    install: bool,
    only_cost: bool,
    progress: bool | None,
    **options: Any,
) -> PositionBias | None:
    """Print the cost of a label-free calibration, then measure it; None if only the cost is wanted.

    Args:
        reader: scores the orderings.
        examples: the questions.
        scores: the file of scores; None keeps none.
        limit: score at most this number of questions; None takes `calibrate_reader`'s.
        install: keep a settled bias in the cache folder.
        only_cost: measure nothing.
        progress: show a bar; None shows it on a terminal.
        **options: `num_passages`, `template`, `seed` and `max_batch_tokens` of `calibrate_reader`.
    """
    from fastreader import moi

    options |= {} if limit is None else {"most": limit}
    cost = moi.calibration_cost(reader, examples, **options)
    say(
        f"no labels: {cost.first_tokens:,} tokens to compute for the first look at 20 questions, "
        f"{cost.all_tokens:,} if all {cost.questions} are needed"
    )
    if only_cost:
        return None
    bias = moi.calibrate_reader(reader, examples, output=scores, keep=install, progress=progress, **options)
    count = bias.measured_on["questions"]
    if not bias.measured_on["settled"]:
        say(f"not settled after {count} questions, and not installed: {bias.reason}")
    elif install:
        say(f"settled by {count} questions, and installed")
    else:
        say(f"settled by {count} questions")
    return bias
