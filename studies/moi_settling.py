"""What stored scores say about calibration without labels, and about the noise of scores. No reader runs.

    python studies/moi_settling.py --output runs/settling
    python studies/moi_settling.py --output runs/settling --report
    python studies/moi_settling.py --score DATA

Reads the observations that `moi_study.py` stored (studies/results/moi5 and moi10: real questions, random orderings,
SmolLM2-135M), and the observations of a second reader, gemma-3-270m, one Latin square a question: all that `--score`
added, and at N = 5 20 questions of `evidence.py`. Each part is appended as it comes, so that a stopped run
resumes with the same command:

- draws: 60 draws of 100 questions with N of their orderings each. Does the fit of the first 20 questions have its best
  place where the mean of the cross-fitted calibrations has it? Does the sequential procedure of `calibrate_reader`
  settle, at how many questions, and on the right place?
- second: 60 draws of 20 of the second reader's questions. The right place is that of the shipped calibration, which was
  measured on other questions, with labels.
- simulated: the same on simulated readers of opposite and of flat bias, with the noise of real readers.
- coverage: how often 95 % intervals hold the scores of orderings that were left out, by quarter of questions by their
  noise in the other orderings, with parameters fitted on other folds of questions; with the noise as fitted, and with
  one sigma for all questions (plain).
- designs: mean posterior variance of the utilities after 3N orderings of several designs, under noise shared along
  beginnings and under independent noise, and the number of passages that each reads.
- hidden: MoI without a calibration against the retriever's order, from the stored readings: by definition of the
  default the reading is the retriever's, and the table shows what query likelihoods in descending order would read.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from lib.moi_rows import outcome_of, rounded, scores_of
from lib.shared import fingerprint, make_parser, rows_of, table, write_both
from lib.simulate import bias_shape, simulate

from fastreader import Reader, load_examples, score_permutations
from fastreader.core.progress import track
from fastreader.data.files import write_text
from fastreader.data.fingerprints import reader_identity
from fastreader.data.result_log import ResultLog
from fastreader.moi import Observations, PositionBias, calibrate, observe
from fastreader.moi.calibration.settling import is_look, look
from fastreader.moi.calibration.store import SHIPPED
from fastreader.moi.quantities.score_noise import correlations, covariance, whitener
from fastreader.moi.solve.fitting import maximise
from fastreader.moi.solve.held_out import predict
from fastreader.moi.solve.likelihood import Pooled, contrasts, design, places_of, pool, posterior
from fastreader.moi.solve.noise_fit import fit_with_noise
from fastreader.permutations import latin, prefix_sharing, random
from fastreader.statistics import paired_bootstrap

START, END = "<!-- settling -->", "<!-- /settling -->"
RESULTS = Path(__file__).with_name("results")
SECOND = "gemma-3-270m"
HELD_OUT = 700  # questions from here on were used for the shipped calibrations
SIZES = (5, 10)
DRAWS, MOST, FIRST = 60, 100, 20
FOLDS, TRAINED = 5, 160
SHAPES = {"flat": 50, "decreasing": 5, "last-dominant": 5}  # simulated readers of each N
Row = dict[str, Any]
Cell = tuple[str, Callable[[], Row]]
REAL = {"df": 4.0, "tau": 1.4, "sigma": 1.5, "beta": 0.13}  # of the shipped calibration at N = 5, with its noise
Z_SIZE = 10.0  # nats: spread of query likelihoods among the passages of a question, which beta refers to


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--output", type=Path, help="folder of the run")
    parser.add_argument("--page", type=Path, help="also write the results between the marks of this page")
    parser.add_argument("--report", action="store_true", help="only write the report of the existing rows")
    parser.add_argument("--score", type=Path, help="only score further questions of this file with the second reader")
    parser.add_argument("--passages", type=int, default=SIZES[0], choices=SIZES, help="N of --score")
    parser.add_argument("--seconds", type=float, default=600.0, help="start no question after this time of a processor")
    arguments = parser.parse_args()
    if arguments.score is not None:
        score(arguments.score, arguments.passages, arguments.seconds)
        return
    if arguments.output is None:
        parser.error("expected --output")
    arguments.output.mkdir(parents=True, exist_ok=True)
    log = arguments.output / "rows.jsonl"
    if not arguments.report:
        run(log)
    rows = list(rows_of(log))
    report(arguments.output, rows)
    if arguments.page is not None:
        before, rest = arguments.page.read_text(encoding="utf-8").split(START)
        write_text(arguments.page, f"{before}{START}\n{page(rows)}\n{END}{rest.split(END)[1]}")


def run(path: Path) -> None:
    """Run the cells that the log lacks."""
    with ResultLog(path, settings={"draws": DRAWS, "most": MOST, "folds": FOLDS}, resume=True) as log:
        todo = [(name, make) for name, make in cells() if name not in log]
        with track("studying", len(todo), "cells", None) as advance:
            for name, make in todo:
                log.append(name, make())
                advance(1)


def further(n: int) -> Path:
    return RESULTS / "moi_settling" / f"{SECOND}-n{n}.jsonl"


def score(data: Path, n: int, seconds: float) -> None:
    """Score one Latin square of each question after the scores of `evidence.py`, as `calibrate_reader` does."""
    reader = Reader.load(SECOND)
    settings = {"data": fingerprint(data), "reader": reader_identity(reader.describe()), "passages": n}
    examples = load_examples(data, limit=HELD_OUT)
    with ResultLog(further(n), settings=settings, resume=True) as log:
        for i, example in list(enumerate(examples))[FIRST:]:
            if time.process_time() > seconds:
                return
            if str(i) not in log:
                example = replace(example, passages=example.passages[:n], candidates=[])
                options = {"permutations": latin(n, 1, i), "question_only": True, "query_likelihood": True}
                found = observe(score_permutations(reader, example, **options))
                row = {"question": found.values, "alone": found.qg}
                row = {name: rounded(np.asarray(value).tolist()) for name, value in row.items()}
                log.append(str(i), {**row, "permutations": found.permutations.tolist()})


def cells() -> Iterator[Cell]:
    for n in SIZES:
        yield f"coverage {n}", partial(coverage, n)
        yield f"designs {n}", partial(designs, n)
        yield f"hidden {n}", partial(hidden, n)
    for number in range(DRAWS):
        yield f"second {number}", partial(second, SIZES[0], number)
    for number in range(DRAWS):
        yield f"second 10 {number}", partial(second, SIZES[1], number)
    for n, number in itertools.product(SIZES, range(DRAWS)):
        yield f"draw {n} {number}", partial(draw, n, number)
    for shape, runs in SHAPES.items():
        for n, number in itertools.product(SIZES, range(runs)):
            yield f"simulated {shape} {n} {number}", partial(simulated, shape, n, number)


def stored(n: int) -> list[Observations]:
    rows = sorted(rows_of(RESULTS / f"moi{n}" / "observations.jsonl"), key=lambda row: int(row["id"]))
    return [observe(scores_of(row)) for row in rows]


def stored_second(n: int) -> list[Observations]:
    """Return the second reader's observations."""
    rows = []
    if n == SIZES[0]:
        rows = [row["pooled"] for row in rows_of(RESULTS / "evidence" / f"{SECOND}-n5-scored.jsonl") if row["pooled"]]
    return [
        Observations(np.array(row["question"]), np.array(row["permutations"]), n, qg=np.array(row["alone"]))
        for row in [*rows, *rows_of(further(n))]
    ]


def second(n: int, number: int) -> Row:
    """Draw questions of the second reader."""
    observed = stored_second(n)
    chosen = np.random.default_rng([2, number]).choice(len(observed), FIRST, replace=False)
    found = calibrate([observed[q] for q in chosen], resamples=20, starts=2, folds=2).bias
    [shipped] = map(PositionBias.load, SHIPPED.glob(f"{SECOND}-*-n{n}.json"))
    return {"n": n, "questions": len(observed), "first": int(found.argmax()) == int(shipped.bias.argmax())}


def best_place(n: int) -> int:
    """Return the best place of the mean of the cross-fitted calibrations."""
    biases = [PositionBias.load(path).bias for path in sorted((RESULTS / f"moi{n}").glob("bias-fold*.json"))]
    return int(np.mean(biases, axis=0).argmax())


def draw(n: int, number: int) -> Row:
    """Draw questions and N orderings of each."""
    rng, observed = np.random.default_rng([n, number]), stored(n)
    drawn = []
    for q in rng.choice(len(observed), MOST, replace=False):
        o = observed[q]
        rows = rng.choice(len(o), n, replace=False)
        drawn.append(replace(o, values=o.values[rows], permutations=o.permutations[rows]))
    first = calibrate(drawn[:FIRST], resamples=20, starts=2, folds=2).bias
    return {"n": n, "first": int(first.argmax()) == best_place(n), **settle(drawn, best_place(n))}


def simulated(shape: str, n: int, number: int) -> Row:
    """Simulate a reader with the noise of real ones."""
    truth = bias_shape(shape, n)
    made = {**REAL, "beta": REAL["beta"] * Z_SIZE}
    noise = correlations(0.6, 0.4, n)
    data = simulate(truth, MOST, lambda s: latin(n, 1, s), shared=noise, seed=1000 * n + number, **made)
    return {"n": n, "shape": shape, **settle(data.observations, int(truth.argmax()))}


def settle(observed: list[Observations], best: int) -> Row:
    """Look as `calibrate_reader` does. Return whether and when it settled, and whether on the best place."""
    for count in filter(is_look, range(len(observed) + 1)):
        found = look(observed[:count])
        if found.settled and found.bias is not None:
            return {"settled": count, "right": int(found.bias.bias.argmax()) == best, "sign": found.bias.sign}
    return {"settled": None}


def coverage(n: int) -> Row:
    """Count orderings within the 95 % intervals predicted from the others, by quarter of questions by noise."""
    from scipy.special import stdtrit

    data = unit_spread(pool(stored(n)))
    folds = np.arange(len(data.rows)) % FOLDS
    counts = {"fitted": np.zeros((4, 2)), "plain": np.zeros((4, 2))}
    noises = []
    for fold in range(FOLDS):
        train, test = data.take(np.flatnonzero(folds != fold)[:TRAINED]), data.take(np.flatnonzero(folds == fold))
        plain, _, _ = maximise(train, 1, np.random.default_rng(0))
        best, fitted = fit_with_noise(plain, train)
        noises.append([fitted.noise.df, *np.asarray(fitted.noise.shared)[1:4].tolist()])
        rng = np.random.default_rng(1)
        part = rng.permuted(np.tile(np.arange(test.rows.shape[1]) % FOLDS, (len(test.rows), 1)), axis=1)
        for number in range(FOLDS):
            out = part == number
            quarter = np.broadcast_to(quarters(plain, test.keep(~out))[:, None], out.shape)[out]
            for name, parameters, scored in (
                ("fitted", best, test.with_noise(fitted.noise)),
                ("plain", plain, test),
            ):
                found = predict(parameters, scored, ~out)
                df = np.broadcast_to(np.minimum(found.df, 1e9)[:, None], out.shape)[out]
                inside = np.abs(scored.scores - found.mean)[out] <= stdtrit(df, 0.975) * found.scale[out]
                counts[name] += np.stack([np.bincount(quarter, inside, 4), np.bincount(quarter, minlength=4)], axis=1)
    shares = {name: (count[:, 0] / count[:, 1]).tolist() for name, count in counts.items()}
    return {"n": n, **shares, "noise": np.mean(noises, axis=0).tolist()}


def quarters(parameters: np.ndarray, data: Pooled) -> np.ndarray:
    """Return the quarter of each question by the residuals of its scores: int64 [Q]."""
    x = design(data.basis @ parameters[:-2], data)
    found = posterior(x, data, float(parameters[-2]), float(np.exp(parameters[-1])))
    left = ((data.centred - (x @ found.mean[:, :, None])[:, :, 0]) ** 2).sum(axis=1)
    return np.searchsorted(np.quantile(left, [0.25, 0.5, 0.75]), left)


def unit_spread(data: Pooled) -> Pooled:
    """Scale scores and query likelihoods to unit spread, as `calibrate` does."""
    size = float(np.sqrt((data.centred**2).sum() / data.rows.sum()))
    return replace(data, scores=data.scores / size, z=data.z / float(np.sqrt(np.mean(data.z**2))))


def designs(n: int) -> Row:
    """Return mean posterior variance of the utilities over tau^2, by design and noise, with the passages read."""
    calibration = calibrate(stored(n)[:100], resamples=20, starts=2)
    makes = {"random": random, "latin": lambda n, count, s: latin(n, count // n, s), "prefix_sharing": prefix_sharing}
    found = {}
    for name, make in makes.items():
        made = [make(n, 3 * n, seed) for seed in range(20)]
        found[name] = {
            "read": float(np.mean([d.computed for d in made])),
            "shared": float(np.mean([spread(d.permutations, calibration, calibration.shared) for d in made])),
            "independent": float(np.mean([spread(d.permutations, calibration, None) for d in made])),
        }
    return {"n": n, "designs": found}


def spread(permutations: np.ndarray, bias: PositionBias, shared: np.ndarray | None) -> float:
    """Return the posterior variance of a utility over its prior's."""
    n = bias.num_passages
    raw = bias.bias[places_of(permutations, n)] @ contrasts(n)
    white = whitener(covariance(permutations, shared), np.ones(len(permutations), dtype=bool))
    x = white @ raw
    precision = x.T @ x * bias.tau**2 / bias.sigma**2 + np.eye(n - 1)
    return float(np.trace(np.linalg.inv(precision)) / (n - 1))


def hidden(n: int) -> Row:
    """Compare orders that need no calibration with the retriever's, in nats of the right answers."""
    rows = list(rows_of(RESULTS / f"moi{n}" / "readings.jsonl"))
    clusters = [row["cluster"] for row in rows]

    def nats(method: str) -> list[float]:
        return [found["nats"] for row in rows if (found := outcome_of(row, method)) is not None]

    base = nats("retriever")
    names = ("qg", "moi-prefixes", "qg-matched")
    return {"n": n, "less": {name: paired_bootstrap(nats(name), base, clusters=clusters).to_dict() for name in names}}


def report(folder: Path, rows: list[Row]) -> None:
    """Write report.json and report.md next to the rows."""
    lines = ["# Calibration without labels, and the noise of scores", "", *_draws(rows), *_simulated(rows)]
    lines += [*_coverage(rows), *_designs(rows), *_hidden(rows)]
    kept = [{k: v for k, v in row.items() if k != "settings"} for row in rows]
    write_both(folder / "report", {"rows": kept}, "\n".join(lines) + "\n")


def page(rows: list[Row]) -> str:
    """Return what docs/moi.md says of the results, between its marks."""
    lines = [
        "On stored scores of real questions, N orderings each, with SmolLM2-135M unless another reader is named:",
    ]
    lines.append("")
    for n in SIZES:
        own = [row for row in _named(rows, "draw") if row["n"] == n]
        first = sum(row["first"] for row in own)
        drawn, settled, right, median, most = _settled(own)
        lines.append(
            f"- N = {n}: the best place is right at {FIRST} questions in {first} of {drawn} draws. By {MOST} questions "
            f"{settled} draws have settled, {right} of them on the right place, after {median} questions (median; at "
            f"most {most})."
        )
    for n in SIZES:
        if own := [row for row in _named(rows, "second") if row["n"] == n]:
            right, of = sum(row["first"] for row in own), own[0]["questions"]
            lines += [
                f"- {SECOND}, N = {n}: the best place is right at {FIRST} questions in {right} of {len(own)} draws out "
                f"of {of} questions, so the draws overlap strongly."
            ]
    flat = [row for row in _named(rows, "simulated") if row["shape"] == "flat"]
    lines.append(f"- Of {len(flat)} simulated readers without a bias {_settled(flat)[1]} are settled.")
    for row in _named(rows, "coverage"):
        shares = {name: ", ".join(f"{share:.3f}" for share in row[name]) for name in ("fitted", "plain")}
        lines.append(
            f"- N = {row['n']}: 95 % intervals of left-out orderings, fitted on other folds, cover {shares['fitted']} "
            f"from the quietest to the noisiest quarter of questions; with one Gaussian sigma {shares['plain']}. "
            f"nu is {row['noise'][0]:.1f}, and sharing 1, 2 or 3 places correlates the noise by "
            + ", ".join(f"{r:.2f}" for r in row["noise"][1:])
            + "."
        )
    for row in _named(rows, "designs"):
        each = [
            f"`{name}` {d['shared']:.2f} ({d['independent']:.2f} independent, {d['read']:.0f} passages read)"
            for name, d in row["designs"].items()
        ]
        lines.append(
            f"- N = {row['n']}: share of a utility's variance left after 3N orderings, with noise as fitted: "
            f"{', '.join(each)}."
        )
    for row in _named(rows, "hidden"):
        parts = [
            f"`{name}` {less['estimate']:+.2f} [{less['low']:+.2f}, {less['high']:+.2f}]"
            for name, less in row["less"].items()
        ]
        lines.append(f"- N = {row['n']}: nats over the retriever's order: {', '.join(parts)}.")
    return "\n".join(lines)


def _named(rows: list[Row], name: str) -> list[Row]:
    return [row for row in rows if row["id"].startswith(f"{name} ")]


def _settled(rows: list[Row]) -> list[object]:
    at = [row["settled"] for row in rows if row["settled"] is not None]
    right = sum(bool(row.get("right")) for row in rows)
    return [len(rows), len(at), right, f"{np.median(at):.0f}" if at else "", max(at, default="")]


def _draws(rows: list[Row]) -> list[str]:
    found = []
    for n in SIZES:
        own = [row for row in _named(rows, "draw") if row["n"] == n]
        found.append([n, sum(row["first"] for row in own), *_settled(own)])
    columns = ["N", "best place right at 20", "draws", "settled", "on the right place", "questions, median", "most"]
    lines = [f"## Stored scores, {FIRST} to {MOST} questions x N orderings", "", *table(columns, found), ""]
    for n in SIZES:
        if own := [row for row in _named(rows, "second") if row["n"] == n]:
            right = sum(row["first"] for row in own)
            of = f"{right} of {len(own)} draws of {FIRST} out of {own[0]['questions']} questions"
            lines += [f"{SECOND}, N = {n}: best place right in {of}.", ""]
    return lines


def _simulated(rows: list[Row]) -> list[str]:
    found = []
    for shape, n in itertools.product(SHAPES, SIZES):
        own = [row for row in _named(rows, "simulated") if (row["shape"], row["n"]) == (shape, n)]
        found.append([shape, n, *_settled(own)])
    columns = ["bias", "N", "readers", "settled", "on the right place", "questions, median", "most"]
    return ["## Simulated readers, noise as fitted on real ones", "", *table(columns, found), ""]


def _coverage(rows: list[Row]) -> list[str]:
    found = []
    for row in _named(rows, "coverage"):
        found += [[row["n"], name, *(f"{share:.3f}" for share in row[name])] for name in ("fitted", "plain")]
    columns = ["N", "noise", "quietest quarter", "second", "third", "noisiest"]
    noises = [
        f"N = {row['n']}: nu {row['noise'][0]:.1f}; noise of orderings that share 1, 2, 3 places correlates by "
        + ", ".join(f"{r:.2f}" for r in row["noise"][1:])
        for row in _named(rows, "coverage")
    ]
    return ["## Coverage of 95 % intervals of left-out orderings", "", *table(columns, found), "", *noises, ""]


def _designs(rows: list[Row]) -> list[str]:
    found = [
        [row["n"], name, f"{d['read']:.0f}", f"{d['shared']:.3f}", f"{d['independent']:.3f}"]
        for row in _named(rows, "designs")
        for name, d in row["designs"].items()
    ]
    columns = ["N", "design, 3N orderings", "passages read", "variance left, noise shared", "noise independent"]
    return ["## Designs: posterior variance of a utility over its prior's", "", *table(columns, found), ""]


def _hidden(rows: list[Row]) -> list[str]:
    found = []
    for row in _named(rows, "hidden"):
        for name, less in row["less"].items():
            interval = f"{less['estimate']:+.3f} [{less['low']:+.3f}, {less['high']:+.3f}]"
            found.append([row["n"], name, interval])
    return ["## Without a calibration: less the retriever's order, nats", "", *table(["N", "order", "less"], found)]


if __name__ == "__main__":
    main()
