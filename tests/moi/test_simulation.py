"""A small part of studies/moi_simulation.py: properties on scores drawn from the model."""

import json
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import moi_simulation
import numpy as np
import pytest
from lib.moi_simulation_tables import tables
from lib.simulate import bias_shape, simulate

from fastreader.data.result_log import iter_results
from fastreader.moi import calibrate, debias
from fastreader.permutations import cyclic, latin, random


@pytest.mark.parametrize("noise", [0.25, 1.0])
@pytest.mark.long
def test_intervals_cover_and_p_best_holds_under_a_measured_bias(noise):
    truth, sigma = bias_shape("last-dominant", 5), noise * np.sqrt(2)
    inside, claimed, hit = [], [], []
    for seed in range(2):
        learnt = simulate(truth, 40, lambda s: latin(5, 3, s), sigma=sigma, seed=seed)
        bias = calibrate(learnt.observations, resamples=50, starts=3)
        fresh = simulate(truth, 250, lambda s: cyclic(5), sigma=sigma, seed=100 + seed)
        for o, v in zip(fresh.observations, fresh.utilities, strict=True):
            u = debias(o, bias)
            inside.append((u.intervals[:, 0] <= v) & (v <= u.intervals[:, 1]))
            claimed.append(u.p_best.max())
            hit.append(u.p_best.argmax() == v.argmax())
    assert np.mean(inside) == pytest.approx(0.95, abs=0.03)
    assert np.mean(claimed) == pytest.approx(np.mean(hit), abs=0.07)


@pytest.mark.long
def test_a_sign_that_is_decided_is_right():
    truth = bias_shape("decreasing", 3)
    decided = 0
    for seed in range(15):
        data = simulate(truth, 12, lambda s: random(3, 6, s), beta=0.5, sigma=0.5, seed=seed)
        bias = calibrate(data.observations, resamples=30, starts=2, folds=3, seed=seed)
        if bias.sign != "undetermined":
            decided += 1
            assert bias.bias @ truth > 0
    assert decided >= 2


def test_a_measured_symmetric_bias_on_an_even_cycle_is_flagged_every_time():
    truth = bias_shape("u-shaped", 6)
    for sigma in (0.0, 0.5):
        learnt = simulate(truth, 30, lambda s: latin(6, 3, s), sigma=sigma, seed=1)
        bias = calibrate(learnt.observations, resamples=50, starts=3)
        fresh = simulate(truth, 20, lambda s: cyclic(6), sigma=sigma, seed=2)
        assert all("singular" in debias(o, bias).flags for o in fresh.observations)


@pytest.mark.long
def test_the_simulation_measures_singular_designs_in_the_directions_they_see(monkeypatch):
    monkeypatch.setattr(moi_simulation, "QUESTIONS", 20)
    monkeypatch.setattr(moi_simulation, "FRESH", 10)
    row = moi_simulation.calibration(4, "u-shaped", 0.0, 1, "calibration")
    cycle = row["designs"]["cyclic"]
    assert cycle["flagged"] == 1.0
    assert cycle["seen"] == pytest.approx(2 / 3)  # an even cycle does not see one of three directions
    assert max(d["seen_error"] for d in row["designs"].values()) < 1e-5
    text = tables([{"what": "calibration", "n": 4, "shape": "u-shaped", "noise": 0.0, **row}], "", 0.95)
    assert "in the directions seen " in text
    assert "of questions that are not flagged: none." in text
    assert re.search(r"miss a place for some passage, flagged: (\d+) of \1; others flagged so: 0\.", text)
    noisy = moi_simulation.calibration(4, "decreasing", 1.0, 1, "calibration")["designs"]["latin"]
    assert noisy["best_claimed"] != noisy["best_claimed_raw"]  # recalibrated


@pytest.mark.long
def test_the_simulation_measures_noisy_prefixes_cyclic_calibrations_and_cycles(monkeypatch):
    monkeypatch.setattr(moi_simulation, "QUESTIONS", 20)
    rows = [
        {
            "what": "joint",
            "n": 5,
            "design": "prefixes",
            "noise": 1.0,
            **moi_simulation.joint(5, "prefixes", 10, "j", 1.0),
        },
        {"what": "cyclic", "n": 4, "shape": "flat", "beta": 0.0, "runs": 1}
        | moi_simulation.cyclic_calibration(4, "flat", 0.0, 1, "cyclic"),
        {"what": "singular", "n": 4, "noise": 0.5, "runs": 2, **moi_simulation.singular(4, 0.5, 2, "singular")},
    ]
    assert rows[0]["right"] <= rows[0]["best"] < 1  # scores are not exact
    assert (rows[1]["flagged"], rows[1]["error"]) == (1, None)
    assert "- N = 4, noise 0.5: 2 of 2" in tables(rows, "", 0.95)


@pytest.mark.long
def test_the_simulation_counts_signs_decided_by_a_contrast():
    few = moi_simulation.contrast(5, 0.0, 3, 20, "contrast")
    assert few["beyond_three"] > 0  # chance alone
    assert few["decided"] == few["wrong"] == 0
    assert json.loads(json.dumps(few)) == few
    strong = moi_simulation.contrast(5, 2.0, 20, 2, "contrast")
    assert (strong["decided"], strong["wrong"]) == (2, 0)


def fails(number):
    if number != 1:
        raise ZeroDivisionError(f"cell {number}")
    return {"number": number}


def test_a_failing_cell_loses_no_other(monkeypatch, tmp_path):
    cells = [(f"cell {number}", {}, partial(fails, number)) for number in range(3)]
    monkeypatch.setattr(moi_simulation, "PARTS", {"some": lambda options: cells})
    monkeypatch.setattr(moi_simulation, "ProcessPoolExecutor", ThreadPoolExecutor)
    monkeypatch.setattr(sys, "argv", ["moi_simulation.py", "--output", str(tmp_path / "rows.jsonl")])
    with pytest.raises(ExceptionGroup, match="cell 0") as raised:
        moi_simulation.main()
    assert len(raised.value.exceptions) == 2
    assert [row["number"] for row in iter_results(tmp_path / "rows.jsonl")] == [1]
