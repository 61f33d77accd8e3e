import re
from dataclasses import replace

import numpy as np
import pytest
from helpers.commands import ids, run
from lib.simulate import bias_shape, simulate

import fastreader as fr
from fastreader.data.fingerprints import digest
from fastreader.errors import InputError
from fastreader.moi import PositionBias, calibrate_reader, calibration_cost, rerank
from fastreader.moi.calibration.settling import CHANCE, is_look, look
from fastreader.moi.calibration.store import find
from fastreader.moi.solve.evidence import evidence
from fastreader.moi.solve.likelihood import pool
from fastreader.permutations import latin

pytestmark = pytest.mark.usefixtures("fewer_resamples")

WORDS = ["red", "green", "blue"]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("FASTREADER_CACHE", str(tmp_path))


def questions(count, passages=3):
    return [
        fr.Example(f"Which colour has number {i}?", [fr.Passage(f"{i} is {w}, {i * p}.") for p, w in enumerate(WORDS)])
        for i in range(count)
    ]


def draw(text):
    """Return a number in [0, 1) that depends on the text only."""
    return int(digest(text), 16) / 16**16


class Swayed:
    """A reader whose question is the likelier, the better the passages are at the places that count."""

    def __init__(self, reader, weights):
        self.reader, self.weights, self.calls = reader, np.asarray(weights), 0

    def __getattr__(self, name):
        return getattr(self.reader, name)

    def describe(self):
        return {**self.reader.describe(), "name": "swayed", "revision": ""}

    @property
    def name(self):
        return "swayed"

    def score(self, sequences, **options):
        """Score by the worth of each passage, drawn by its text, and a noise drawn by the prompt."""
        self.calls += 1
        found = self.reader.score(sequences, **options)
        return replace(found, logprob=np.array([self.worth(self.tokenizer.decode(c)) for c, _ in sequences]))

    def worth(self, prompt):
        worth = [4 * draw(text) for text in re.findall(r"\d+ is \w+, \d+", prompt)]
        return worth[0] if len(worth) == 1 else float(np.dot(self.weights, worth)) + 0.5 * draw(prompt)


@pytest.mark.parametrize("shape", ["decreasing", "last-dominant", "flat"])
def test_the_best_place_is_found_without_labels(shape):
    wrong = 0
    for seed in range(3):
        data = simulate(bias_shape(shape, 5), 49, lambda s: latin(5, 1, s), beta=0.7, sigma=0.7, df=4.0, seed=seed)
        found = look(data.observations, seed)
        if shape == "flat":
            assert not found.settled
        elif found.settled:
            wrong += found.bias.bias.argmax() != data.bias.argmax()
            assert found.bias.sign == "query_likelihood" and not found.bias.flat
        else:
            assert found.why
    assert not wrong


def test_evidence_is_chi_square_without_a_bias():
    chances = []
    for seed in range(300):
        data = simulate(bias_shape("flat", 4), 20, lambda s: latin(4, 1, s), sigma=0.8, df=4.0, seed=seed)
        chances.append(evidence(pool(data.observations)).chance)
    assert np.mean(np.array(chances) < 0.1) == pytest.approx(0.1, abs=0.05)
    assert min(chances) > CHANCE
    truth = bias_shape("decreasing", 4)
    found = evidence(pool(simulate(truth, 40, lambda s: latin(4, 1, s), sigma=0.1, tau=0.1).observations))
    assert found.chance < 1e-9 and found.share(truth) > 0.99 and found.share(-truth) < -0.99
    without = simulate(truth, 20, lambda s: latin(4, 1, s), query=False).observations
    assert evidence(pool(without)).chance == 1.0


def test_looks_are_few():
    assert sum(is_look(count) for count in range(1000)) < 20


def test_calibrate_reader_resumes_and_is_found_later(tiny_reader, tmp_path):
    reader = Swayed(tiny_reader, [0.9, -0.1, -0.8])
    asked = questions(40)
    cost = calibration_cost(reader, asked)
    assert (cost.questions, cost.orderings) == (40, 120)
    assert 0 < cost.first_tokens < cost.all_tokens
    out = tmp_path / "scores.jsonl"
    bias = calibrate_reader(reader, asked, output=out)
    assert bias.bias.argmax() == 0 and bias.sign == "query_likelihood" and not bias.flat
    assert bias.measured_on["settled"] and not bias.measured_on["labels"]
    assert len(ids(out)) >= bias.measured_on["questions"]
    calls = reader.calls
    again = calibrate_reader(reader, asked, output=out, keep=False)
    assert reader.calls == calls  # nothing is scored again
    assert again.bias == pytest.approx(bias.bias)
    found, source = find(reader.describe(), fr.Template().digest(), 3)
    assert source == "cached" and found.bias == pytest.approx(bias.bias)
    assert rerank(reader, asked[0]).bias_source == "cached"
    out.write_text("".join(line + "\n" for line in out.read_text().splitlines()[:7]))
    assert calibrate_reader(reader, asked, output=out).bias == pytest.approx(bias.bias)
    with pytest.raises(InputError, match=r"other settings: .*seed"):
        calibrate_reader(reader, asked, output=out, seed=1)
    with pytest.raises(InputError, match="made from another question"):
        calibrate_reader(reader, [replace(e, question="Why?") for e in asked], output=out)


def test_a_flat_reader_is_undecidable_and_not_kept(tiny_reader):
    reader = Swayed(tiny_reader, [0.0, 0.0, 0.0])
    bias = calibrate_reader(reader, questions(24), most=22)
    assert bias.flat and bias.sign == "undetermined" and "beyond chance" in bias.reason
    assert bias.measured_on == {"questions": 22, "design": "latin:1", "seed": 0, "labels": False, "settled": False}
    assert find(reader.describe(), fr.Template().digest(), 3) is None


def test_bad_questions_raise_before_any_pass(tiny_reader):
    reader = Swayed(tiny_reader, [0.0, 0.0, 0.0])
    for asked, options, message in (
        ([], {}, "questions: expected at least 20, got 0"),
        (questions(19), {}, "questions: expected at least 20 with 3 passages, got 19"),
        (questions(20), {"num_passages": 4}, "at least 20 with 4 passages, got 0"),
        (questions(20), {"num_passages": 2}, "num_passages: expected an integer of at least 3"),
        (questions(20), {"most": 5}, "most: expected an integer of at least 20"),
        ([replace(e, passages=e.passages[:2]) for e in questions(20)], {}, "at least 3 passages of the first"),
    ):
        with pytest.raises(InputError, match=message):
            calibrate_reader(reader, asked, **options)
        with pytest.raises(InputError, match=message):
            calibration_cost(reader, asked, **options)
    assert reader.calls == 0


def test_the_command_measures_without_labels(model, tmp_path):
    file = tmp_path / "questions.jsonl"
    fr.save_examples(questions(22), file)
    common = ("calibrate", file, "-m", model, "-n", 3, "--cache-dir", tmp_path)
    printed = run(*common, "--cost").stderr
    assert "tokens to compute for the first look at 20 questions" in printed
    assert not (tmp_path / "calibrations").exists()
    done = run(*common, "--scores", tmp_path / "s.jsonl", "-o", tmp_path / "bias.json", "--install")
    bias = PositionBias.load(tmp_path / "bias.json")
    assert bias.measured_on["file"] == "questions.jsonl" and bias.num_questions == 22
    assert (tmp_path / "calibrations").exists() == bias.measured_on["settled"]
    assert "22 questions" in done.stderr
    assert "--scores: questions with labels need it" in run(*common, "--permutations", "latin:2", expect=2).stderr
    assert "22 questions: " in run(*common, "--permutations", "latin:2", "--cost").stdout
