"""A run: it learns, it resumes as if it had not stopped, and it rejects another run's folder."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from helpers.support import byte_tokenizer, tiny_llama

from fastreader import Example, Passage, Reader, Template, score_permutations
from fastreader.errors import ContextOverflowError, InputError, ModelFileError

peft = pytest.importorskip("peft", reason="the student's adapters come from PEFT: pip install 'fastreader[distill]'")

from fastreader.moi.distill import DistillSettings, LoraSettings, Student, evaluate, make_lessons  # noqa: E402
from fastreader.moi.distill import checkpoint as checkpoints  # noqa: E402
from fastreader.moi.distill import distill as run_distill  # noqa: E402

SETTINGS = DistillSettings(learning_rate=2e-2, epochs=4, batch=2, per_question=3, checkpoint_every=4, temperature=2.0)
SHORT = Template(header="Read:\n", passage_without_title="{text}", question_lead="Q:")
LORA = LoraSettings(rank=4, dropout=0.1)


@pytest.fixture(scope="module")
def lessons():
    """Five questions of three passages, scored by a tiny teacher under six orderings."""
    teacher = Reader.load((tiny_llama(seed=1), byte_tokenizer()), device="cpu", precision="exact")
    rng = np.random.default_rng(0)
    words = ["river", "Nile", "flows", "north", "capital", "of", "Egypt", "old", "sea", "wide"]

    def text(count):
        return " ".join(rng.choice(words, count))

    examples = [Example(text(4), [Passage(text(5)) for _ in range(3)], id=str(i)) for i in range(5)]
    scores = score_permutations(
        teacher, examples, permutations="random:6", question_only=True, score_passages=True, template=SHORT
    )
    scores = list(scores)
    return make_lessons(examples, scores), make_lessons(examples, scores, "joint")


def student():
    return Student.load((tiny_llama(seed=2), byte_tokenizer()), lora=LORA)


def distill(*arguments, **named):
    return run_distill(*arguments, **{"template": SHORT, **named})


def weights(of):
    return {k: v.clone() for k, v in of.adapter().items()}


def test_it_learns(lessons, tmp_path):
    pupil = student()
    settings = DistillSettings(**{**SETTINGS.to_dict(), "learning_rate": 5e-3, "per_question": 6, "epochs": 8})
    run = distill(pupil, lessons[0], tmp_path, settings, held_out=lessons[0])
    (first, before), (last, after) = run.evaluations
    assert (first, last) == (0, 24)
    assert run.finished
    assert after.means["kl"] < 0.5 * before.means["kl"]
    assert after.means["spearman"] > before.means["spearman"] + 0.3
    curve = [json.loads(line) for line in (tmp_path / "losses.jsonl").read_text().splitlines()]
    assert [c["step"] for c in curve] == list(range(1, 25))
    assert all(c["computed_tokens"] < c["total_tokens"] for c in curve)
    assert evaluate(pupil, lessons[0], settings, SHORT).kl == after.kl


def test_joint_observation_and_reverse_direction(lessons, tmp_path):
    settings = DistillSettings(
        **{
            **SETTINGS.to_dict(),
            "observation": "joint",
            "direction": "reverse",
            "schedule": "linear",
            "warmup_steps": 2,
        }
    )
    run = distill(student(), lessons[1], tmp_path, settings, held_out=lessons[1])
    assert run.evaluations[1][1].means["kl"] < run.evaluations[0][1].means["kl"]
    assert run.steps[0].learning_rate < run.steps[2].learning_rate > run.steps[-1].learning_rate


def test_the_first_loss_is_the_mean_kl_of_the_rows_drawn(lessons, tmp_path):
    """Without dropout, one step over all questions with all their orderings has the evaluation's KL for a loss."""
    pupil = Student.load((tiny_llama(seed=2), byte_tokenizer()), lora=LoraSettings(dropout=0.0))
    settings = DistillSettings(**{**SETTINGS.to_dict(), "batch": 5, "per_question": 6, "epochs": 1})
    run = distill(pupil, lessons[0], tmp_path, settings, held_out=lessons[0])
    assert run.steps[0].loss == pytest.approx(run.evaluations[0][1].means["kl"], rel=1e-5)


def test_a_resumed_run_is_the_same_run(lessons, tmp_path):
    whole, parts = student(), student()
    run = distill(whole, lessons[0], tmp_path / "whole", SETTINGS, held_out=lessons[0][:2])
    distill(parts, lessons[0], tmp_path / "parts", SETTINGS, held_out=lessons[0][:2], max_steps=5)
    again = student()
    resumed = distill(again, lessons[0], tmp_path / "parts", SETTINGS, held_out=lessons[0][:2], resume=True)
    assert not torch.equal(next(iter(weights(parts).values())), next(iter(weights(again).values())))
    assert all(torch.equal(v, weights(whole)[k]) for k, v in weights(again).items())
    assert [s.loss for s in resumed.steps] == [s.loss for s in run.steps]
    assert resumed.evaluations == run.evaluations
    assert len((tmp_path / "parts" / "losses.jsonl").read_text().splitlines()) == len(run.steps)
    done = distill(student(), lessons[0], tmp_path / "whole", SETTINGS, held_out=lessons[0][:2], resume=True)
    assert done.to_dict() == run.to_dict()


def test_killed_between_checkpoints(lessons, tmp_path, monkeypatch):
    """Steps after the last checkpoint run again, and the curve does not hold them twice."""
    real, calls = checkpoints.save, []

    def dies(*arguments, **named):
        if calls:
            raise KeyboardInterrupt
        calls.append(1)
        return real(*arguments, **named)

    monkeypatch.setattr(checkpoints, "save", dies)
    with pytest.raises(KeyboardInterrupt):
        distill(student(), lessons[0], tmp_path / "a", SETTINGS)
    assert len((tmp_path / "a" / "losses.jsonl").read_text().splitlines()) == 8
    assert checkpoints.latest(tmp_path / "a").name == "checkpoint-000004"
    monkeypatch.setattr(checkpoints, "save", real)
    resumed = distill(student(), lessons[0], tmp_path / "a", SETTINGS, resume=True)
    whole = distill(student(), lessons[0], tmp_path / "b", SETTINGS)
    assert [s.loss for s in resumed.steps] == [s.loss for s in whole.steps]
    assert [json.loads(x)["step"] for x in (tmp_path / "a" / "losses.jsonl").open()] == list(range(1, 13))
    names = sorted(p.name for p in (tmp_path / "b").iterdir())
    assert names == ["checkpoint-000008", "checkpoint-000012", "losses.jsonl"]  # older checkpoints go


def test_another_run_or_a_damaged_checkpoint_is_rejected(lessons, tmp_path):
    distill(student(), lessons[0], tmp_path, SETTINGS, max_steps=4)
    with pytest.raises(InputError, match="holds a run already"):
        distill(student(), lessons[0], tmp_path, SETTINGS)
    other = DistillSettings(**{**SETTINGS.to_dict(), "temperature": 1.0})
    with pytest.raises(InputError, match=r"other settings: settings \("):
        distill(student(), lessons[0], tmp_path, other, resume=True)
    with pytest.raises(InputError, match=r"lessons \("):
        distill(student(), lessons[0][:3], tmp_path, SETTINGS, resume=True)
    (tmp_path / "checkpoint-000004" / "optimiser.pt").write_bytes(b"cut")
    with pytest.raises(ModelFileError, match="damaged or missing"):
        distill(student(), lessons[0], tmp_path, SETTINGS, resume=True)
    with pytest.raises(InputError, match="lessons: expected at least one"):
        distill(student(), [], tmp_path / "new", SETTINGS)
    with pytest.raises(InputError, match="got 'the question first'"):
        distill(student(), lessons[0], tmp_path / "first", SETTINGS, template=Template(question_first=True))
    short = Student.load((tiny_llama(max_position_embeddings=40), byte_tokenizer()))
    with pytest.raises(ContextOverflowError):
        distill(short, lessons[0], tmp_path / "short", SETTINGS)


def test_gradients_are_clipped_and_their_norm_is_reported(lessons, tmp_path):
    """The optimiser sees clipped gradients. The step reports the norm before clipping."""
    seen, reported = {}, {}
    for most in (None, 1e-3):
        settings = DistillSettings(**{**SETTINGS.to_dict(), "max_grad_norm": most})
        learner = student()
        run = distill(learner, lessons[0], tmp_path / str(most), settings, max_steps=1)
        gradients = [p.grad for p in learner.parameters() if p.grad is not None]
        seen[most], reported[most] = torch.stack([g.norm() for g in gradients]).norm().item(), run.steps[0].grad_norm
    assert reported[None] == reported[1e-3] == pytest.approx(seen[None])
    assert seen[None] > 1e-3 and seen[1e-3] == pytest.approx(1e-3, rel=1e-3)


def test_other_weights_of_the_same_name_are_another_run(lessons, tmp_path):
    distill(student(), lessons[0], tmp_path, SETTINGS, max_steps=4)
    other = Student.load((tiny_llama(seed=3), byte_tokenizer()), lora=LORA)
    with pytest.raises(InputError, match=r"other settings: revision \("):
        distill(other, lessons[0], tmp_path, SETTINGS, resume=True)


def test_import_needs_no_torch():
    code = "import sys, fastreader.moi.distill; assert not {'torch', 'peft'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
