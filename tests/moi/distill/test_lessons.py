"""Teacher's scores joined with their questions, and the loss."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import entropy, spearmanr

from fastreader import Example, Passage, PermutationScores, Template, TreeStats
from fastreader.data.result_log import ResultLog
from fastreader.errors import InputError
from fastreader.moi.distill import DistillSettings, LoraSettings, compare, make_lessons, read_teacher
from fastreader.moi.distill.evaluation import kl_divergence, kl_loss
from fastreader.moi.distill.lessons import draw

ORDERS = [[0, 1, 2], [2, 1, 0], [1, 0, 2], [0, 2, 1]]
EXAMPLE = Example("Which river?", [Passage("The Nile."), Passage("The Seine."), Passage("The Po.")], id="a")


def scores(values, **changes):
    count = len(values)
    result = PermutationScores(
        question="Which river?", candidates=[], permutations=np.array(ORDERS[:count]), logprobs=np.zeros((count, 0)),
        question_logprobs=np.array(values, dtype=float), candidate_tokens=np.zeros(0, dtype=np.int64),
        question_tokens=4,
        passages_tokens=np.full(count, 30), greedy=np.zeros((count, 0), dtype=bool), stats=TreeStats(count, 99, 50, 4),
        seconds=0.0, reader={"name": "teacher"}, design="explicit", id="a",
    )  # fmt: skip
    return replace(result, **changes)


def test_question_and_joint():
    result = scores([-5.0, -3.0, -4.0], passages_logprobs=np.array([-30.0, -33.0, -30.5]))
    (lesson,) = make_lessons([EXAMPLE], [result])
    assert lesson.scores.tolist() == [-5.0, -3.0, -4.0]
    assert lesson.permutations.tolist() == ORDERS[:3]
    (joint,) = make_lessons([EXAMPLE], [result], "joint")
    assert joint.scores.tolist() == [-35.0, -36.0, -34.5]
    assert lesson.digest() != joint.digest()


def test_questions_without_an_id_go_by_their_place():
    other = replace(EXAMPLE, question="What?", id=None)
    lessons = make_lessons([other, replace(EXAMPLE, id=None)], [scores([-5.0, -3.0], id="1")])
    assert lessons[0].example.question == "Which river?"


def test_repeated_ids_are_told_apart_as_the_command_line_does():
    other = replace(EXAMPLE, passages=[Passage("x"), Passage("y"), Passage("z")])
    first, second = make_lessons([EXAMPLE, other], [scores([-5.0, -3.0]), scores([-4.0, -3.0], id="a#2")])
    assert (first.example.passages, second.example.passages) == (EXAMPLE.passages, other.passages)
    with pytest.raises(InputError, match="scores of 'a': expected one result for each question"):
        make_lessons([EXAMPLE, other], [scores([-5.0, -3.0]), scores([-4.0, -3.0])])


@pytest.mark.parametrize(
    ("result", "observation", "message"),
    [
        (scores([-5.0]), "question", "at least 2 orderings, got 1"),
        (scores([-5.0, np.nan]), "question", r"finite log-likelihoods, got \[nan\]"),
        (scores([-5.0, -np.inf]), "question", r"finite log-likelihoods, got \[-inf\]"),
        (scores([-5.0, -5.0, -5.0]), "question", "3 orderings of different scores, got -5.0"),
        (scores([-5.0, -4.0]), "joint", "score_passages=True"),
        (scores([-5.0, -4.0]), "answer", "expected one of question, joint, got 'answer'"),
        (scores([-5.0, -4.0], id="b"), "question", "'b': expected an id of the 1 examples, got 'b'"),
        (scores([-5.0, -4.0], question="Why?"), "question", "expected the question 'Which river"),
        (scores([-5.0, -4.0], truncated_tokens={0: 3}), "question", "whole passages"),
        (
            scores([-5.0, -4.0], permutations=np.array([[0, 3], [3, 0]])),
            "question",
            "orderings of passages below 3, got 3",
        ),
    ],
)
def test_scores_that_do_not_fit(result, observation, message):
    with pytest.raises(InputError, match=message):
        make_lessons([EXAMPLE], [result], observation)


def test_read_what_a_log_holds(tmp_path):
    template = Template(header="Read:\n")
    path = tmp_path / "teacher.jsonl"
    with ResultLog(path, settings={"template": template.to_dict()}) as log:
        log.append("a", {k: v for k, v in scores([-5.0, -3.0]).to_dict().items() if k != "id"})
    results, found = read_teacher(path)
    assert found == template
    assert make_lessons([EXAMPLE], results)[0].scores.tolist() == [-5.0, -3.0]
    with ResultLog(tmp_path / "more.jsonl", settings={"template": Template().to_dict()}) as log:
        log.append("b", {k: v for k, v in scores([-5.0, -3.0]).to_dict().items() if k != "id"})
    path.write_text(path.read_text() + (tmp_path / "more.jsonl").read_text())
    with pytest.raises(InputError, match="made with one template, got 2"):
        read_teacher(path)
    with pytest.raises(InputError, match="no such file"):
        read_teacher(tmp_path / "none.jsonl")
    (tmp_path / "empty.jsonl").touch()
    with pytest.raises(InputError, match=r"got \[\]"):
        read_teacher(tmp_path / "empty.jsonl")


def test_draw():
    (lesson,) = make_lessons([EXAMPLE], [scores([-5.0, -3.0, -4.0, -6.0])])
    assert draw(lesson, 9, [0]).tolist() == [0, 1, 2, 3]
    drawn = [tuple(sorted(draw(lesson, 2, [0, epoch]).tolist())) for epoch in range(200)]
    assert set(drawn) == {(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)}
    assert draw(lesson, 2, [0, 7]).tolist() == draw(lesson, 2, [0, 7]).tolist()


def test_kl_by_hand():
    """Teacher (2/3, 1/3), student (1/3, 2/3): KL = 2/3 ln 2 - 1/3 ln 2 both ways."""
    teacher, student = np.log([2.0, 1.0]), np.log([1.0, 2.0]) - 40
    assert kl_divergence(teacher, student) == pytest.approx(np.log(2) / 3)
    assert kl_divergence(teacher, student, temperature=1e9) == pytest.approx(0, abs=1e-12)
    assert kl_divergence(teacher, teacher - 7) == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("direction", ["forward", "reverse"])
@pytest.mark.parametrize("temperature", [0.5, 3.0])
def test_kl_against_scipy(direction, temperature):
    rng = np.random.default_rng(0)
    teacher, student = rng.normal(-50, 3, 6), rng.normal(-80, 2, 6)
    p, q = (np.exp((x - x.max()) / temperature) for x in (teacher, student))
    want = entropy(p, q) if direction == "forward" else entropy(q, p)
    assert kl_divergence(teacher, student, temperature, direction) == pytest.approx(want)
    tensor = kl_loss(torch.from_numpy(teacher), torch.from_numpy(student), temperature, direction)
    assert tensor.item() == pytest.approx(want)


def test_compare():
    teacher = [np.array([-3.0, -1.0, -2.0, -5.0]), np.array([-1.0, -2.0])]
    student = [np.array([-9.0, -7.5, -7.0, -8.0]), np.array([-4.0, -4.0])]
    result = compare(teacher, student)
    assert result.spearman == [pytest.approx(spearmanr(teacher[0], student[0]).statistic), 0.0]
    assert result.best == [False, True]
    assert result.means["kl"] == pytest.approx(np.mean(result.kl))
    with pytest.raises(InputError, match="at least one question"):
        compare([], [])


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"observation": "answer"}, "observation: expected one of question, joint, got 'answer'"),
        ({"direction": "both"}, "direction"),
        ({"schedule": "cosine"}, "schedule"),
        ({"per_question": 1}, "per_question: expected an integer of at least 2, got 1"),
        ({"batch": 0}, "batch"),
        ({"epochs": 1.5}, "epochs"),
        ({"temperature": 0.0}, "temperature: expected a finite number above 0, got 0.0"),
        ({"learning_rate": float("nan")}, "learning_rate"),
        ({"max_grad_norm": -1.0}, "max_grad_norm"),
        ({"temperature": np.float32(2)}, "temperature: expected a finite number"),
        ({"weight_decay": "x"}, "weight_decay: expected a number, got 'x'"),
        ({"weight_decay": -0.1}, "weight_decay: expected a finite number of at least 0, got -0.1"),
    ],
)
def test_settings(values, message):
    with pytest.raises(InputError, match=message):
        DistillSettings(**values)


def test_adapters():
    for values, message in (
        ({"alpha": "a"}, "alpha: expected a number"),
        ({"dropout": 1.0}, "at least 0 and below 1, got 1.0"),
    ):
        with pytest.raises(InputError, match=message):
            LoraSettings(**values)


def test_learning_rate():
    settings = DistillSettings(learning_rate=1.0, warmup_steps=3, schedule="linear")
    assert [settings.learning_rate_at(s, 7) for s in range(7)] == [0.25, 0.5, 0.75, 1.0, 0.75, 0.5, 0.25]
    assert DistillSettings(learning_rate=1.0).learning_rate_at(6, 7) == 1.0
