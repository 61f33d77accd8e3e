"""arrange: brute force at small sizes, lengths between calibrations, and what cannot place."""

import itertools

import numpy as np
import pytest

import fastreader as fr
from fastreader import Arranger
from fastreader.errors import InputError
from fastreader.moi import PositionBias
from fastreader.moi.calibration.store import SHIPPED, keep
from fastreader.passages.arrange import _at_hand

SHIPPED_N = (3, 5, 10)


def calibration(n):
    (path,) = SHIPPED.glob(f"smollm2-135m-*-question-n{n}.json")
    return PositionBias.load(path)


def changed(n=5, **values):
    return PositionBias.from_dict({**calibration(n).to_dict(), **values})


@pytest.mark.parametrize("n", range(1, 7))
def test_no_order_places_better(n):
    arranger, random = Arranger.of(map(calibration, SHIPPED_N)), np.random.default_rng(n)
    for _ in range(20):
        scores, bias = random.normal(size=n), arranger.bias(n)
        order = arranger.order(scores)
        best = max(float(bias @ scores[list(other)]) for other in itertools.permutations(range(n)))
        assert float(bias @ scores[order]) == pytest.approx(best) and sorted(order) == list(range(n))


@pytest.mark.parametrize("n", SHIPPED_N)
def test_a_calibrated_length_is_its_calibration(n):
    found, own = Arranger.of(map(calibration, SHIPPED_N)).bias(n), calibration(n).bias
    np.testing.assert_allclose(found, own / np.linalg.norm(own), atol=1e-12)


def test_a_length_that_was_held_out_is_near_its_calibration():
    """N = 5 from N = 3 and N = 10: the check that docs/moi.md states."""
    found, own = Arranger.of([calibration(3), calibration(10)]).bias(5), calibration(5).bias
    assert float(found @ own) / np.linalg.norm(own) > 0.95 and found.argmax() == own.argmax()


def test_lengths_beyond_the_calibrated_ones():
    arranger = Arranger({3: [1.0, 0.0, -1.0], 5: [4.0, 3.0, 2.0, 1.0, 0.0]})
    for n in (2, 4, 20):
        assert np.all(np.diff(arranger.bias(n)) < 0) and np.linalg.norm(arranger.bias(n)) == pytest.approx(1)
    assert arranger.order([0.1, 0.4, 0.3, 0.2]) == [1, 2, 3, 0] and arranger.order([7.0]) == [0]


def test_passages_of_every_kind_come_back_as_they_are():
    texts = ["a", "b", "c", "d", "e"]
    placed = fr.arrange(texts, "smollm2-135m")
    assert sorted(placed) == texts and placed[-1] == "a"  # this reader is swayed by the last place
    assert fr.arrange(texts, calibration(5), [1, 5, 2, 3, 4])[-1] == "b"
    passages = [fr.Passage(text, score=score) for text, score in zip(texts, (0.1, 0.9, 0.2, 0.3, 0.4), strict=True)]
    assert fr.arrange(passages, "smollm2-135m")[-1] is passages[1]
    records = [{"text": text, "score": score} for text, score in zip(texts, (3, 1, 9, 2, 0), strict=True)]
    assert fr.arrange(records, "smollm2-135m")[-1] is records[2]
    assert fr.arrange([], "smollm2-135m") == [] and fr.arrange(["a"], "smollm2-135m") == ["a"]


def test_a_reader_brings_its_calibrations(packaged_reader):
    assert fr.arrange(["a", "b", "c"], packaged_reader)[-1] == "a"
    assert list(Arranger.for_reader(packaged_reader).biases) == list(SHIPPED_N)


def test_a_name_is_looked_up_once_until_a_calibration_comes_changes_or_goes(tmp_path, monkeypatch):
    monkeypatch.setenv("FASTREADER_CACHE", str(tmp_path))
    shipped = Arranger.for_reader("smollm2-135m")
    looked_up = _at_hand.cache_info().misses
    assert Arranger.for_reader("smollm2-135m") is shipped and _at_hand.cache_info().misses == looked_up
    own = changed(bias=(-calibration(5).bias).tolist())
    kept = keep(own)
    np.testing.assert_allclose(Arranger.for_reader("smollm2-135m").bias(5), -shipped.bias(5), atol=1e-12)
    calibration(5).save(kept)
    np.testing.assert_allclose(Arranger.for_reader("smollm2-135m").bias(5), shipped.bias(5), atol=1e-12)
    kept.unlink()
    assert Arranger.for_reader("smollm2-135m") is shipped


def test_a_bias_that_was_read_is_the_callers_own():
    arranger = Arranger.of(map(calibration, SHIPPED_N))
    first = arranger.bias(7)
    first[:] = 0
    np.testing.assert_array_equal(arranger.bias(7), Arranger.of(map(calibration, SHIPPED_N)).bias(7))


def test_files(tmp_path):
    arranger = Arranger.of(map(calibration, SHIPPED_N))
    arranger.save(tmp_path / "arranger.json")
    calibration(5).save(tmp_path / "bias.json")
    loaded = Arranger.load(tmp_path / "arranger.json")
    assert (loaded.reader, loaded.template) == (arranger.reader, arranger.template) and "smollm2" in repr(loaded)
    for n in range(1, 12):
        np.testing.assert_array_equal(loaded.bias(n), arranger.bias(n))
    assert fr.arrange(["a", "b"], tmp_path / "arranger.json") == fr.arrange(["a", "b"], str(tmp_path / "bias.json"))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: fr.arrange(["a", "b"], "no-such-reader"), "no calibration of 'no-such-reader'"),
        (lambda: fr.arrange(["a", "b"], calibration(5), [1.0]), r"scores: expected shape \[2\]"),
        (lambda: fr.arrange(["a", "b"], calibration(5), [1.0, float("nan")]), r"scores\[1\]: expected a finite number"),
        (lambda: fr.arrange("ab", calibration(5)), "passages"),
        (lambda: fr.arrange(["a", "b"], changed(flat=True)), "it found no bias"),
        (lambda: fr.arrange(["a", "b"], changed(sign="undetermined")), "undetermined"),
        (lambda: Arranger({}), "biases: expected at least one"),
        (lambda: Arranger({3: [1.0, 2.0]}), r"biases\[3\]: expected shape \[3\]"),
        (lambda: Arranger.of([calibration(5), calibration(5)]), "one for each N"),
        (lambda: Arranger.of([calibration(5), changed(3, template="other")]), "one reader and template"),
    ],
)
def test_what_cannot_place(make, message):
    with pytest.raises(InputError, match=message):
        make()


def test_the_command_writes_what_can_be_read_again(tmp_path):
    from helpers.support import QUESTIONS
    from typer.testing import CliRunner

    from fastreader.cli.commands import app

    examples = fr.load_examples(QUESTIONS)[:2]
    told = CliRunner().invoke(app, ["arrange", str(QUESTIONS), "--limit", "2"])
    assert told.exit_code == 0
    written = tmp_path / "arranged.jsonl"
    written.write_text(told.stdout, encoding="utf-8")
    for before, after in zip(examples, fr.load_examples(written), strict=True):
        assert after.passages == fr.arrange(before.passages, "smollm2-135m")
        assert (after.question, after.answers, after.id) == (before.question, before.answers, before.id)
    output = tmp_path / "file.jsonl"
    assert CliRunner().invoke(app, ["arrange", str(QUESTIONS), "--limit", "2", "-o", str(output)]).exit_code == 0
    assert output.read_text(encoding="utf-8") == told.stdout
    failed = CliRunner().invoke(app, ["arrange", str(QUESTIONS), "--model", "no-such-reader"])
    assert isinstance(failed.exception, InputError)


def test_passages_without_a_score_come_last_and_ties_keep_their_order():
    passages = [fr.Passage(str(i), score=score) for i, score in enumerate((None, 1.0, float("nan"), 1.0, 3.0, -1e300))]
    with pytest.warns(UserWarning, match="passages: 2 of 6 have no score and come last"):
        found = fr.arrange(passages, calibration(5))
    assert found == fr.arrange(passages, calibration(5), [2, 5, 1, 5, 6, 3])
