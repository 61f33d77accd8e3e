import itertools
import subprocess
import sys

import numpy as np
import pytest
from eor_cases import CountingReader, simulate

from fastreader.eor import (
    Answers,
    BertScore,
    CrossEncoderNli,
    Exact,
    Function,
    Idf,
    NliTexts,
    ReaderNli,
    Voter,
    correctness,
)
from fastreader.eor.answer import is_answer
from fastreader.eor.fit import Objective, simplex
from fastreader.eor.scoring import ballots
from fastreader.errors import InputError

EQUAL = ("exact:equal",)


def objective(voter, X, y):
    return Objective(ballots(X, voter.resolved(), is_answer), np.asarray(y, dtype=float), voter._rules())


WORDS = ["paris", "paris france", "lyon", "the lyon city", "nice", "", "i don't know", None, "rome italy", "italy"]


@pytest.mark.parametrize("pooling", ["mean", "max", "majority", "plurality"])
@pytest.mark.parametrize("dropped_vote", [False, True])
@pytest.mark.parametrize("ties", ["first", "weight"])
@pytest.mark.parametrize("one_way", [False, True])
@pytest.mark.long(keep=10)
def test_objective_equals_the_score(pooling, dropped_vote, ties, one_way):
    """The search's shortcuts (settled questions, equal questions, kept supports) do not change it."""
    generator = np.random.default_rng(5)
    picked = generator.integers(0, len(WORDS), (60, 5))
    X = np.array([[WORDS[i] for i in row] for row in np.concatenate([picked, picked[:20]])], dtype=object)
    y = generator.random((60, 5)).round(1)
    y[:10] = 0.7  # settled
    y = np.concatenate([y, y[:20]])  # twice
    within = Function("within", lambda a, b: 0.2 + 0.6 * (a in b))  # differs from b to a
    similarities = ["exact", within] if one_way else ["exact", "f1"]
    voter = Voter(similarities, pooling=pooling, dropped_vote=dropped_vote, ties=ties, similarity_threshold=0.3)
    found = objective(voter, X, y)
    for draw in range(12):
        weights = generator.uniform(0, 0.6, 7).round(1 if draw % 2 else 5)
        weights[generator.random(7) < 0.3] = 0
        retriever, similarity = weights[:5], weights[5:]
        voter.set_params(retriever_weights=retriever, similarity_weights=similarity)
        assert found(weights) == pytest.approx(voter.score(X, y), abs=1e-12)


@pytest.mark.parametrize("pooling", ["mean", "max", "majority", "plurality"])
def test_fit_without_varying_questions_is_unweighted(pooling):
    voter = Voter(pooling=pooling, starts=2).fit([["a", "b", "c"], ["d", "e", "f"]], [[1, 1, 1], [0, 0, 0]])
    assert voter.fit_report_.objective == voter.fit_report_.unweighted == 0.5
    assert voter.fit_report_.varying == 0


def test_simplex_toggles_one_weight_within_bounds():
    start = np.array([0.6, 0.0, 0.4, 0.2])
    vertices = simplex(start, 0.6)
    assert vertices.tolist() == [
        [0.6, 0.0, 0.4, 0.2],
        [0.0, 0.0, 0.4, 0.2],
        [0.6, 0.6, 0.4, 0.2],
        [0.6, 0.0, 0.0, 0.2],
        [0.6, 0.0, 0.4, 0.6],
    ]


CASES = {
    "noise": {"skills": [0.55, 0.5, 0.45, 0.4], "noise": 2},
    "copies": {"skills": [0.6, 0.55, 0.5, 0.45], "copies": (2, 3), "copying": 0.5, "noise": 1},
    "three copies": {"skills": [0.6, 0.55, 0.5, 0.45, 0.4], "copies": (2, 3, 4), "copying": 0.5},
    "one good": {"skills": [0.7, 0.3, 0.3, 0.3], "wrong": 3},
}


@pytest.fixture(scope="module", params=[(name, seed) for name in CASES for seed in (0, 1)], ids=str)
def fitted(request):
    name, seed = request.param
    X, y = simulate(seed, 300, **CASES[name])
    voter = Voter(EQUAL, starts=6).fit(X, y)
    found = objective(voter, X, y)
    grid = [0.0, 0.15, 0.3, 0.45, 0.6] if X.shape[1] < 6 else [0.0, 0.2, 0.4, 0.6]
    best = max(found(np.array([*weights, 0.6])) for weights in itertools.product(grid, repeat=X.shape[1]))
    return name, X, y, voter, best


def test_fit_closes_the_gap_to_a_grid_search(fitted):
    _, X, y, voter, best = fitted
    unweighted = Voter(EQUAL).score(X, y)
    assert voter.fit_report_.unweighted == pytest.approx(unweighted)
    assert voter.score(X, y) == pytest.approx(voter.fit_report_.objective)
    assert best > unweighted
    assert voter.score(X, y) - unweighted >= 0.8 * (best - unweighted)


def test_noise_retrievers_are_dropped_and_weights_bounded(fitted):
    name, _, _, voter, _ = fitted
    noise = CASES[name].get("noise", 0)
    weights = voter.retriever_weights_
    assert (weights[len(weights) - noise :] == 0).all()
    assert (weights[: len(weights) - noise] > 0).any()
    assert ((weights == 0) | ((weights > 0.1) & (weights <= 0.6))).all()
    assert voter.similarity_weights_.sum() == pytest.approx(1)


@pytest.mark.long(keep=3)
def test_fit_is_not_worse_out_of_fold(fitted, record_property):
    name, X, y, _, _ = fitted
    plain, out, best = [], [], []
    for k in range(5):
        train, test = np.arange(len(X)) % 5 != k, np.arange(len(X)) % 5 == k
        learned = Voter(EQUAL, starts=4).fit(X[train], y[train])
        plain.append(Voter(EQUAL).score(X[test], y[test]))
        out.append(learned.score(X[test], y[test]))
        found = objective(Voter(EQUAL), X[test], y[test])
        weights = itertools.product([0.0, 0.3, 0.6], repeat=X.shape[1])
        best.append(max(found(np.array([*w, 0.6])) for w in weights))
    share = (np.mean(out) - np.mean(plain)) / (np.mean(best) - np.mean(plain))
    record_property("share of the gap closed out of fold", float(share))
    print(f"{name}: {share:.0%} of the gap between unweighted voting and the best weights closed out of fold")
    assert np.mean(out) >= np.mean(plain)


def test_similarity_weights_are_learned():
    """One similarity is right, the other is 1 for every pair of answers."""
    X, y = simulate(3, 200, [0.6, 0.5, 0.5])
    blind = Function("blind", lambda a, b: 1.0 if "wrong" in a and "wrong" in b else 0.0, symmetric=True)
    voter = Voter([Exact("equal"), blind]).fit(X, y)
    plain = Voter([Exact("equal"), blind])
    assert voter.score(X, y) > plain.score(X, y)
    assert voter.similarity_weights_[0] > voter.similarity_weights_[1]


def test_the_report_and_the_seed():
    X, y = simulate(0, 80, [0.6, 0.5, 0.4])
    first, second = (Voter(EQUAL, starts=5, seed=7).fit(X, y) for _ in range(2))
    np.testing.assert_array_equal(first.retriever_weights_, second.retriever_weights_)
    report = first.fit_report_
    assert len(report.starts) == 5 and report.objective >= max(report.starts) >= min(report.starts)
    assert report.questions == 80 and 0 < report.varying <= 80 and report.evaluations > 5
    assert "fitted" in repr(first)


@pytest.mark.parametrize("y", [[[1, 1], [0, 0]], [[0, 0], [0, 0]]])
def test_nothing_to_learn_gives_equal_weights(y):
    X = [["a1", "b1"], ["c1", "c1"]]
    voter = Voter(EQUAL).fit(X, y)
    assert voter.retriever_weights_.tolist() == [0.6, 0.6] and voter.score(X, y) == np.mean(y)


def test_pruning_keeps_one_retriever():
    """Only the right answer of one question varies, and the first retriever has it."""
    X = [["right", "b1", "c1"], ["d1", "d1", "d1"]]
    voter = Voter(EQUAL).fit(X, [[1, 0, 0], [0, 0, 0]])
    assert voter.retriever_weights_[0] > 0 and voter.predict(X).tolist() == ["right", "d1"]


def test_negative_correctness(recwarn):
    X = [["right", "b1", "c1"], ["d1", "d1", "e1"], ["right", "g1", "g1"]]
    y = np.array([[1, -1, -1], [-1, -1, 1], [1, -1, -1]])
    voter = Voter(EQUAL, starts=3).fit(X, y)
    assert voter.fit_report_.unweighted == pytest.approx(-1 / 3) and voter.score(X, y) == pytest.approx(1 / 3)
    assert not recwarn.list  # SciPy warns of starts out of the bounds


@pytest.mark.parametrize(
    ("options", "y", "expected"),
    [
        ({}, [[1, 0]], r"y: expected .*\[2, 2\]"),
        ({}, [1, 0], "y: expected"),
        ({}, [[1, 0], [1, float("nan")]], "NaN"),
        ({"upper": 0.1}, [[1, 0], [1, 0]], "upper"),
        ({"upper": float("inf")}, [[1, 0], [1, 0]], "upper"),
        ({"starts": 2.5}, [[1, 0], [1, 0]], "starts"),
        ({"starts": 0}, [[1, 0], [1, 0]], "starts"),
        ({"max_evaluations": 0}, [[1, 0], [1, 0]], "max_evaluations"),
    ],
)
def test_invalid_fits_raise(options, y, expected):
    with pytest.raises(InputError, match=expected):
        Voter(EQUAL, **options).fit([["a1", "b1"], ["c1", "c1"]], y)


def test_fitted_voter_rejects_other_retrievers():
    rows = [Answers("q", ["A", "B"], ["x", "y"])] * 3
    voter = Voter(EQUAL).fit(rows, [[1, 0]] * 3)
    with pytest.raises(InputError, match="A, B, got 'B, C'"):
        voter.vote(Answers("q", ["B", "C"], ["x", "y"]))
    with pytest.raises(InputError, match="expected 3"):
        voter.vote(["x", "y", "z"])


def test_fit_matches_retrievers_by_name():
    texts, y = simulate(0, 60, [0.7, 0.4, 0.3])
    rows = [Answers(f"q{i}", ["A", "B", "C"], list(row)) for i, row in enumerate(texts)]
    voter = Voter(EQUAL).fit(rows, y)
    there = voter.vote(rows)
    back = voter.vote([row.select(["C", "B", "A"]) for row in rows])
    assert [v.scores.tolist() for v in there] == [v.scores[::-1].tolist() for v in back]


def test_rows_are_reordered_to_the_first():
    texts, y = simulate(0, 60, [0.7, 0.4, 0.3])
    rows = [Answers(f"q{i}", ["A", "B", "C"], list(row), right=["right"]) for i, row in enumerate(texts)]
    mixed = [row.select(["C", "A", "B"]) if i % 2 else row for i, row in enumerate(rows)]
    assert correctness(mixed).tolist() == y.tolist()
    assert Voter(EQUAL).fit(mixed, correctness(mixed)).to_dict()["fitted"]["retriever_weights"] == (
        Voter(EQUAL).fit(rows, y).retriever_weights_.tolist()
    )
    assert [v.to_dict() for v in Voter().vote(mixed)] == [v.to_dict() for v in Voter().vote(rows)]


@pytest.mark.parametrize(
    "change",
    [{"similarities": ("f1",)}, {"retriever_weights": [0.1, 0.9]}, {"similarity_weights": [1]}, {"ties": "weight"}],
)
def test_setting_a_fitted_parameter_discards_the_fit(change):
    X, y = [["a1", "b1"], ["c1", "d1"]], [[0, 1], [0, 1]]
    voter = Voter(EQUAL).fit(X, y)
    assert voter.predict(X).tolist() == ["b1", "d1"]
    voter.set_params(min_support=0.0, seed=4)
    assert hasattr(voter, "retriever_weights_")
    voter.set_params(**change)
    assert not hasattr(voter, "retriever_weights_") and not hasattr(voter, "fit_report_")
    assert (
        voter.vote(X)[0].to_dict()
        == Voter(**{"similarities": EQUAL, **change, "min_support": 0.0}).vote(X)[0].to_dict()
    )


def test_saving(tmp_path):
    X, y = simulate(1, 60, [0.6, 0.5, 0.4])
    voter = Voter(("exact:equal", "f1"), pooling="max", min_support=0.2, retriever_weights=(0.5, 0.4, 0.3)).fit(X, y)
    voter.save(tmp_path / "voter.json")
    loaded = Voter.load(tmp_path / "voter.json")
    assert loaded.to_dict() == voter.to_dict()
    assert loaded.fit_report_ == voter.fit_report_
    assert loaded.predict(X).tolist() == voter.predict(X).tolist()
    assert not list(tmp_path.glob("*.tmp"))


def test_saving_numpy_parameters(tmp_path):
    voter = Voter(["f1"], starts=np.int64(2), min_support=np.float32(0.5), prune=np.bool_(False))
    voter.set_params(retriever_weights={"A": np.float32(0.5), "B": 1})
    voter.save(tmp_path / "voter.json")
    assert Voter.load(tmp_path / "voter.json").get_params() == voter.get_params()


def test_saving_unnamed_similarities(tmp_path):
    same = Function("same", lambda a, b: float(a == b))
    Voter([same]).save(tmp_path / "voter.json")
    with pytest.raises(InputError, match="'same'"):
        Voter.load(tmp_path / "voter.json").vote(["x", "y"])
    assert Voter.load(tmp_path / "voter.json", similarities=[same]).vote(["x", "x"]).support.tolist() == [1, 1]
    with pytest.raises(InputError, match="same"):
        Voter.load(tmp_path / "voter.json", similarities=["f1"])


def layers():
    return BertScore("none", layer=3, idf=Idf(3, {"a": 1, "b": 2}))


@pytest.mark.parametrize(
    ("saved", "other"),
    [
        (layers, lambda: BertScore("none")),
        (layers, lambda: BertScore("none", layer=3)),
        (layers, lambda: BertScore("none", layer=3, idf=Idf(3, {"a": 1, "b": 3}))),
        (lambda: CrossEncoderNli("none", statement="{question} {answer}"), lambda: CrossEncoderNli("none")),
        (lambda: CrossEncoderNli("none", label="neutral"), lambda: CrossEncoderNli("none")),
        (lambda: ReaderNli(CountingReader(), NliTexts(yes="True")), lambda: ReaderNli(CountingReader())),
        (lambda: ReaderNli(named("a")), lambda: ReaderNli(named("b"))),
        (lambda: ReaderNli(named("a", "0a1b")), lambda: ReaderNli(named("a", "2c3d"))),
    ],
)
def test_loading_rejects_other_settings(tmp_path, saved, other):
    Voter([saved(), "f1"]).save(tmp_path / "voter.json")
    name = saved().name
    with pytest.raises(InputError, match=f"{name} was saved with"):
        Voter.load(tmp_path / "voter.json", similarities=[other(), "f1"])
    if name != "nli:reader":
        with pytest.raises(InputError, match=f"{name} was saved with"):
            Voter.load(tmp_path / "voter.json")
    loaded = Voter.load(tmp_path / "voter.json", similarities=[saved(), "f1"])
    assert [s.name for s in loaded.resolved()] == [name, "f1"]


def named(name, revision=None):
    reader = CountingReader()
    reader.name = name
    if revision is not None:
        about = reader.describe() | {"revision": revision}
        reader.describe = lambda: about
    return reader


def test_two_layers_of_an_encoder_differ():
    assert len(Voter([BertScore("none", layer=1), BertScore("none", layer=2)]).resolved()) == 2
    with pytest.raises(InputError, match="once"):
        Voter([BertScore("none", layer=1), BertScore("none", layer=1)]).resolved()


def test_loading_requires_a_custom_accept(tmp_path):
    def short(text):
        return text is not None and len(text) < 5

    Voter(EQUAL, accept=short).save(tmp_path / "voter.json")
    with pytest.raises(InputError, match=r"accept: the voter was saved with .*short"):
        Voter.load(tmp_path / "voter.json")
    assert Voter.load(tmp_path / "voter.json", accept=short).predict([["longer", "abc"]]).tolist() == ["abc"]


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"similarities": ["f1"], "parameters": {"oops": 1}}', '{"similarities": ["f1"]}']
)
def test_loading_malformed_voters_raises(tmp_path, text):
    (tmp_path / "voter.json").write_text(text)
    with pytest.raises(InputError):
        Voter.load(tmp_path / "voter.json")
    with pytest.raises(InputError, match="cannot be read"):
        Voter.load(tmp_path / "none.json")


def test_loading_weights_of_another_shape_raises(tmp_path):
    X, y = simulate(1, 30, [0.6, 0.5])
    values = Voter(EQUAL).fit(X, y).to_dict()
    values["fitted"]["similarity_weights"] = [0.5, 0.5]
    with pytest.raises(InputError, match="similarity_weights"):
        Voter.from_dict(values)


@pytest.mark.parametrize(
    ("place", "value", "expected"),
    [
        (("fitted", "retriever_weights"), [0.2, 0.3], "retriever_weights: expected 3"),
        (("fitted", "retriever_weights"), ["a", "b", "c"], "retriever_weights: expected 3"),
        (("fitted", "similarity_weights"), [None, "x"], "similarity_weights: expected 1"),
        (("fitted", "retrievers"), 5, "int"),
        (("similarity_settings",), [], "similarity_settings: expected one for each of exact:equal"),
    ],
)
def test_loading_edited_values_raises(place, value, expected):
    rows = [Answers("q", ["A", "B", "C"], ["x", "y", "z"])] * 2
    values = Voter(EQUAL, starts=1).fit(rows, [[1, 0, 0]] * 2).to_dict()
    *outer, last = place
    (values[outer[0]] if outer else values)[last] = value
    with pytest.raises(InputError, match=expected):
        Voter.from_dict(values)


# scikit-learn


def test_parameters():
    voter = Voter(("f1",), pooling="max")
    assert voter.get_params()["pooling"] == "max"
    assert voter.set_params(pooling="mean", seed=3) is voter and voter.seed == 3
    with pytest.raises(InputError, match="'oops'"):
        voter.set_params(oops=1)


def test_clones_share_similarities_and_drop_weights():
    sklearn = pytest.importorskip("sklearn.base", reason="needs scikit-learn")
    X, y = simulate(2, 40, [0.6, 0.5])
    similarity = Exact("equal")
    voter = Voter([similarity], starts=2).fit(X, y)
    clone = sklearn.clone(voter)
    assert clone.resolved()[0] is similarity
    assert not hasattr(clone, "retriever_weights_")
    assert {k: v for k, v in clone.get_params().items() if k != "similarities"} == {
        k: v for k, v in voter.get_params().items() if k != "similarities"
    }


def test_cross_validation():
    selection = pytest.importorskip("sklearn.model_selection", reason="needs scikit-learn")
    X, y = simulate(2, 90, [0.6, 0.5, 0.4])
    scores = selection.cross_val_score(Voter(EQUAL, starts=2), X, y, cv=3)
    expected = []
    for train, test in selection.KFold(3).split(X):
        expected.append(Voter(EQUAL, starts=2).fit(X[train], y[train]).score(X[test], y[test]))
    assert scores.tolist() == expected
    search = selection.GridSearchCV(Voter(EQUAL, starts=1), {"pooling": ["mean", "max"]}, cv=2).fit(X, y)
    assert search.best_params_["pooling"] in ("mean", "max")
    rows = [Answers(f"q{i}", ["A", "B", "C"], list(row)) for i, row in enumerate(X)]
    assert selection.cross_val_score(Voter(EQUAL, starts=2), rows, y, cv=3).tolist() == expected


def test_voters_and_measures_import_no_torch_or_scikit_learn():
    code = (
        "import sys, fastreader; eor = fastreader.eor; eor.Voter(starts=1).fit([['a1', 'b1']] * 2, [[1, 0]] * 2);"
        "eor.measures.rwr([[1, 0], [0, 1]]); eor.parse('SE@5');"
        "print([m for m in ('torch', 'transformers', 'sklearn', 'bm25s') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
    assert ReaderNli.name == "nli:reader"
