"""MoI's estimators on scores drawn from its model: errors, flags and coverage.

    python studies/moi_simulation.py --output results.jsonl [--markdown table.md] [--plot figure.png] [--quick]

Calibration: for each N, shape of the bias, design and noise a calibration on QUESTIONS questions, then utilities of
fresh questions under it. Reported are the error of the bias, the error of the utilities in the directions that the
orderings see, coverage of the intervals, how often the best passage is found and claimed (P(best) recalibrated on the
calibration questions' best passages), and flags. Joint: the paper's solve of single questions without noise, and on
cyclic orderings and prefixes with it. Singular: a U-shaped bias on an even cycle. Cyclic: calibrations on cyclic
orderings only. Sign: runs with weak evidence of query likelihoods or of a gold contrast; how often the sign was
decided, and how often wrongly. Results are appended as they come; the same command resumes a run.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from lib.moi_simulation_tables import plot, tables
from lib.shared import make_parser
from lib.simulate import SHAPES, Simulated, bias_shape, simulate

from fastreader.core.progress import track
from fastreader.data.files import write_text
from fastreader.data.result_log import ResultLog, iter_results
from fastreader.moi import Observations, PositionBias, calibrate, debias
from fastreader.moi.quantities.observations import FloatArray
from fastreader.moi.quantities.utilities import matched
from fastreader.moi.solve import cyclic as circulant
from fastreader.moi.solve.ridge import solve
from fastreader.permutations import Design, cyclic, latin, pruned, random

NOISES = (0.0, 0.25, 0.5, 1.0)  # standard deviation of a score, relative to the signal's
DESIGNS: dict[str, Callable[[int, int], Design]] = {
    "random": lambda n, seed: random(n, None, seed),
    "latin": lambda n, seed: latin(n, 2 if n == 3 else 3, seed),
    "cyclic": lambda n, seed: cyclic(n),
}
QUESTIONS = 40
FRESH = 200
REPEATS = 5  # number of calibrations in a cell
REPEATS_AT_3 = 20  # with three places one calibration's error moves the coverage by points
RARE = 5  # factor on the runs of cells without a sign: wrong decisions are rare
LEVEL = 0.95

Cell = tuple[str, dict[str, Any], partial[dict[str, Any]]]


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--output", type=Path, required=True, help="results so far (.jsonl); resumed if it exists")
    parser.add_argument("--markdown", type=Path, help="write the tables here")
    parser.add_argument("--plot", type=Path, help="draw the figure here")
    parser.add_argument("--sizes", type=int, nargs="+", default=[3, 5, 10, 20])
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS), help="[default: all]")
    parser.add_argument("--sign-runs", type=int, default=1000)
    parser.add_argument("--jobs", type=int, default=1, help="number of processes; set OMP_NUM_THREADS=1 with several")
    parser.add_argument("--quick", action="store_true", help="few cells and runs, as a smoke test")
    options = parser.parse_args()
    if options.quick:
        options.sizes, options.sign_runs = [3, 5], 20
    cells = [cell for part in options.parts for cell in PARTS[part](options)]
    with (
        ResultLog(options.output, settings={"version": 5}, resume=True) as log,
        track("simulating", len(cells), "cells", None) as advance,
        ProcessPoolExecutor(options.jobs) as workers,
    ):
        todo = {workers.submit(run): (key, what) for key, what, run in cells if key not in log}
        advance(len(cells) - len(todo))
        failed: dict[str, Exception] = {}
        for done in as_completed(todo):
            key, what = todo[done]
            if (error := done.exception()) is not None:
                failed[key] = error
            else:
                log.append(key, {**what, **done.result()})
            advance(1)
    if failed:  # raised last, so that the other cells are stored
        raise ExceptionGroup(f"cells that failed: {', '.join(failed)}", list(failed.values()))
    found = {row["id"]: row for row in iter_results(options.output)}
    rows = [found[key] for key, _, _ in cells]
    about = f"{QUESTIONS} questions to calibrate, {FRESH} fresh ones to debias for each design, repeated."
    text = tables(rows, about, LEVEL)
    print(text)
    if options.markdown:
        write_text(options.markdown, text + "\n")
    if options.plot:
        plot(rows, options.plot, LEVEL)


def seed_of(*values: Any) -> int:
    return int.from_bytes(repr(values).encode(), "big") % (2**31 - 1)


def calibrations(options: argparse.Namespace) -> Iterator[Cell]:
    for n in options.sizes:
        repeats = 1 if options.quick else REPEATS_AT_3 if n == 3 else REPEATS
        for shape in SHAPES:
            for noise in NOISES[:: 2 if options.quick else 1]:
                what = {"what": "calibration", "n": n, "shape": shape, "noise": noise, "repeats": repeats}
                yield f"calibration {n} {shape} {noise} {repeats}", what, partial(calibration, **what)


def calibration(n: int, shape: str, noise: float, repeats: int, what: str) -> dict[str, Any]:
    """Calibrate, then debias fresh questions of each design. Cyclic rows under the calibration from Latin squares."""
    if shape == "flat" and noise == 0:
        return {"refused": "constant scores"}
    truth = bias_shape(shape, n)
    sigma = noise * np.sqrt(2.0)  # beta = tau = 1: a bias of unit norm passes their spread on to the scores
    flat, identified, bias_errors = [], [], []
    parts: dict[str, list[dict[str, float]]] = {design: [] for design in DESIGNS}
    for repeat in range(repeats):
        seed = seed_of(what, n, shape, noise, repeat)
        for learnt, designs in (("random", ["random"]), ("latin", ["latin", "cyclic"])):
            data = simulate(truth, QUESTIONS, partial(DESIGNS[learnt], n), sigma=sigma, seed=seed)
            gold = [int(v.argmax()) for v in data.utilities]
            bias = calibrate(data.observations, gold=gold, confidence_level=LEVEL, resamples=100, seed=repeat)
            flat.append(bias.flat)
            identified.append(bias.identified)
            bias_errors.append(float(np.abs(bias.bias - truth).max()))
            for design in designs:
                fresh = simulate(truth, FRESH, partial(DESIGNS[design], n), sigma=sigma, seed=seed + 1)
                parts[design] += [of_question(o, v, truth, bias) for o, v in zip_strict(fresh)]
    return {
        "flat": sum(flat),
        "calibrations": len(flat),
        "bias_identified": sum(identified),
        "bias_error": max(bias_errors),
        "designs": {
            design: {name: float(np.mean([row[name] for row in rows])) for name in rows[0]}
            | {name: sum(row[name] for row in rows) for name in ("misses", "misses_flagged", "covers_flagged")}
            | {
                "seen_error": float(max(row["seen_error"] for row in rows)),
                "sound_coverage": mean_or_none([row["coverage"] for row in rows if not row["flagged"]]),
            }
            for design, rows in parts.items()
        },
    }


def mean_or_none(values: list[float]) -> float | None:
    return float(np.mean(values)) if values else None


def zip_strict(data: Simulated) -> Iterator[tuple[Observations, FloatArray]]:
    return zip(data.observations, data.utilities, strict=True)


def of_question(o: Observations, v: FloatArray, truth: FloatArray, bias: PositionBias) -> dict[str, float]:
    """Compare one question's utilities with the truth."""
    u = debias(o, bias)
    met = {(passage, at) for row in o.permutations.tolist() for at, passage in enumerate(row)}
    misses = len(met) < o.passages * o.length
    known = solve(o.permutations, replace(bias, bias=truth), "dense")
    visible = circulant.seen(known.power)  # the directions that these orderings can determine
    raw = debias(o, replace(bias, temperature=1.0)).p_best
    gained, most = (float(v[order] @ truth) for order in (u.order("matched"), matched(v, truth)))
    return {
        "seen_error": float(np.abs(known.axes[:, visible].T @ (u.utility - v)).max(initial=0.0)),
        "seen": float(visible.mean()),
        "coverage": float(np.mean((u.intervals[:, 0] <= v) & (v <= u.intervals[:, 1]))),
        "best_found": float(u.utility.argmax() == v.argmax()),
        "best_claimed": float(u.p_best[u.utility.argmax()]),
        "best_claimed_raw": float(raw[u.utility.argmax()]),
        "gained": gained / most if most > 0 else 0.0,
        "flagged": float(bool(set(u.flags) - {"uncovered"})),
        "misses": float(misses),
        "misses_flagged": float(misses and "uncovered" in u.flags),
        "covers_flagged": float(not misses and "uncovered" in u.flags),
    }


def joints(options: argparse.Namespace) -> Iterator[Cell]:
    runs = 3 if options.quick else 20
    for n in options.sizes:
        for design in (*DESIGNS, "prefixes"):
            what = {"what": "joint", "n": n, "design": design, "runs": runs if n < 20 else max(3, runs // 4)}
            yield f"joint {n} {design} {what['runs']}", what, partial(joint, **what)
        for design, noise in (("cyclic", 0.5), *(("prefixes", noise) for noise in NOISES[1:])):
            what = {**what, "design": design, "noise": noise}
            yield f"joint {n} {design} {what['runs']} noise {noise}", what, partial(joint, **what)


def joint(n: int, design: str, runs: int, what: str, noise: float = 0.0) -> dict[str, Any]:
    """Run the paper's solve. Count whether it fits, is right and is flagged."""
    flagged, reversed_, right, best, products, fits = 0, 0, 0, 0, [], []
    rng = np.random.default_rng(seed_of(what, n, design))
    for run in range(runs):
        length = n if design != "prefixes" else max(2, n // 2)
        a = rng.dirichlet(2 * np.ones(length))
        make = DESIGNS.get(design, lambda m, s, length=length: pruned(random(m, None, s), length))
        data = simulate(a, 1, lambda s, make=make: make(n, s), passages=n, sigma=noise, seed=run)
        u, v = debias(data.observations[0], method="joint", seed=run), data.utilities[0]
        flagged += not u.identified
        found = np.argsort(-u.utility)
        right += bool((found == np.argsort(-v)).all())
        best += bool(found[0] == v.argmax())
        reversed_ += bool((found == np.argsort(v)).all())
        fits.append(u.residual)
        products.append(float(np.abs(np.outer(u.bias - u.bias.mean(), u.utility) - np.outer(a - a.mean(), v)).max()))
    return {
        "flagged": flagged / runs,
        "right": right / runs,
        "reversed": reversed_ / runs,
        "best": best / runs,
        "residual": max(fits),
        "product_error": max(products),
    }


def singulars(options: argparse.Namespace) -> Iterator[Cell]:
    for n in [n for n in options.sizes if n % 2 == 0] or [4]:
        for noise in (0.0, 0.5):
            what = {"what": "singular", "n": n, "noise": noise, "runs": 2 if options.quick else 20}
            yield f"singular {n} {noise} {what['runs']}", what, partial(singular, **what)


def singular(n: int, noise: float, runs: int, what: str) -> dict[str, Any]:
    """Measure a symmetric bias in each run, on an even cycle: every question must be flagged."""
    truth, sigma = bias_shape("u-shaped", n), noise * np.sqrt(2.0)
    caught = 0
    for run in range(runs):
        seed = seed_of(what, n, noise, run)
        learnt = simulate(truth, QUESTIONS, partial(DESIGNS["latin"], n), sigma=sigma, seed=seed)
        bias = calibrate(learnt.observations, resamples=100, seed=run)
        data = simulate(truth, 10, lambda s: cyclic(n), sigma=sigma, seed=seed + 1)
        caught += all("singular" in debias(o, bias).flags for o in data.observations)
    return {"caught": caught}


def cyclics(options: argparse.Namespace) -> Iterator[Cell]:
    for n, shape in itertools.product(options.sizes, SHAPES):
        for beta in (0.0, 1.0):
            what = {"what": "cyclic", "n": n, "shape": shape, "beta": beta, "runs": 2 if options.quick else 10}
            yield f"cyclic {n} {shape} {beta} {what['runs']}", what, partial(cyclic_calibration, **what)


def cyclic_calibration(n: int, shape: str, beta: float, runs: int, what: str) -> dict[str, Any]:
    """Calibrate on cyclic orderings only, noise half the signal's: flagged, or near the true bias."""
    truth = bias_shape(shape, n)
    flagged, errors = 0, []
    for run in range(runs):
        seed = seed_of(what, n, shape, beta, run)
        learnt = simulate(truth, QUESTIONS, lambda s: cyclic(n), beta=beta, sigma=0.5 * np.sqrt(2.0), seed=seed)
        bias = calibrate(learnt.observations, resamples=100, seed=run)
        if bias.flat or not bias.identified or bias.sign == "undetermined":
            flagged += 1
        else:
            errors.append(float(np.abs(bias.bias - truth).max()))
    return {"flagged": flagged, "error": max(errors, default=None)}


def signs(options: argparse.Namespace) -> Iterator[Cell]:
    runs = options.sign_runs
    for n in options.sizes:
        for beta in (0.0, 0.1, 0.3, 1.0):
            many = RARE * runs if beta == 0 and n <= 5 else runs  # a larger N takes ten times as long
            what = {"what": "sign", "n": n, "beta": beta, "runs": many}
            yield f"sign {n} {beta} {many}", what, partial(sign, **what)
    for n in options.sizes:
        for strength, probed in itertools.product((0.0, 0.3, 1.0), (8, 30)):
            many = RARE * runs if strength == 0 else runs
            what = {"what": "contrast", "n": n, "strength": strength, "probed": probed, "runs": many}
            yield f"contrast {n} {strength} {probed} {many}", what, partial(contrast, **what)


def sign(n: int, beta: float, runs: int, what: str) -> dict[str, Any]:
    """Count how often weak query likelihoods decide the sign, and how often wrongly (at beta 0: at all)."""
    truth = bias_shape("decreasing", n)
    decided = wrong = 0
    for run in range(runs):
        data = simulate(
            truth, 12, lambda s: random(n, min(2 * n, 6), s), beta=beta, sigma=0.5, seed=seed_of(what, n, beta, run)
        )
        bias = calibrate(data.observations, resamples=50, starts=2, folds=3, seed=run)
        decided += bias.sign != "undetermined"
        wrong += bias.sign != "undetermined" and float(bias.bias @ truth) < 0
    return {"decided": decided, "wrong": wrong}


def contrast(n: int, strength: float, probed: int, runs: int, what: str) -> dict[str, Any]:
    """Count as `sign` for a gold passage's effect by place: `strength` times the bias, noise 1 at each place."""
    truth = bias_shape("decreasing", n)
    decided = wrong = beyond_three = 0
    for run in range(runs):
        seed = seed_of(what, n, strength, probed, run)
        data = simulate(truth, 12, lambda s: random(n, 6 if n <= 5 else 2 * n, s), sigma=0.5, query=False, seed=seed)
        effects = strength * truth + np.random.default_rng(seed).standard_normal((probed, n))
        bias = calibrate(data.observations, contrast=effects, resamples=20, starts=1, folds=2, seed=run)
        beyond_three += bool(abs(bias.contrast_z or 0.0) >= 3)
        decided += bias.sign != "undetermined"
        wrong += bias.sign != "undetermined" and float(bias.bias @ truth) < 0
    return {"decided": decided, "wrong": wrong, "beyond_three": beyond_three}


PARTS = {"calibrated": calibrations, "joint": joints, "singular": singulars, "cyclic": cyclics, "sign": signs}


if __name__ == "__main__":
    main()
