"""The study of calibration without labels: its page says what its rows say, and a cell runs."""

from pathlib import Path

import moi_settling
import numpy as np
import pytest
from lib.shared import rows_of

ROOT = Path(__file__).parents[2]

ROWS = list(rows_of(ROOT / "studies" / "results" / "moi_settling" / "rows.jsonl"))


def test_the_page_says_what_the_rows_say():
    text = (ROOT / "docs" / "moi.md").read_text(encoding="utf-8")
    assert moi_settling.page(ROWS) in text


def test_the_bars_hold():
    for row in (row for row in ROWS if row["id"].startswith("coverage")):
        assert all(0.93 <= share <= 0.97 for share in row["fitted"])
    for n in moi_settling.SIZES:
        draws = [row for row in ROWS if row["id"].startswith(f"draw {n} ")]
        assert len(draws) == 60 and np.mean([row["first"] for row in draws]) >= 0.95
        assert all(row["right"] for row in draws if row["settled"] is not None)
        second = [row for row in ROWS if row["id"].startswith("second ") and row["n"] == n]
        assert len(second) == 60 and np.mean([row["first"] for row in second]) >= 0.95
    flat = [row for row in ROWS if row["id"].startswith("simulated flat")]
    assert len(flat) == 100 and all(row["settled"] is None for row in flat)


@pytest.mark.parametrize(("n", "name"), [(5, "second 7"), (10, "second 10 7")])
def test_a_draw_of_the_second_reader_is_that_of_its_stored_scores(n, name):
    stored = moi_settling.stored_second(n)
    again = moi_settling.second(n, 7)
    row = next(row for row in ROWS if row["id"] == name)
    assert again == {name: row[name] for name in again} and again["questions"] == len(stored)
    assert all(o.permutations.shape == (n, n) and o.qg is not None for o in stored)
    for o in stored:  # a Latin square: every passage once in each place
        assert (np.sort(o.permutations, axis=0) == np.arange(n)[:, None]).all()


def test_prefixes_are_judged_with_the_noise_that_they_share():
    """Latin squares share nothing within a square, so only their variance is the same under either noise."""
    from test_debias import known

    from fastreader.permutations import latin, prefix_sharing

    bias = known(moi_settling.bias_shape("last-dominant", 5))
    shared = moi_settling.correlations(0.6, 0.4, 5)
    one = latin(5, 1).permutations
    assert moi_settling.spread(one, bias, shared) == pytest.approx(moi_settling.spread(one, bias, None))
    many = prefix_sharing(5, 15).permutations
    assert moi_settling.spread(many, bias, shared) < moi_settling.spread(many, bias, None)
