"""fastreader demo: right and wrong are marked, an order that flips an answer is found, both ways are timed."""

import numpy as np
import pytest
from helpers.support import byte_tokenizer, tiny_llama
from typer.testing import CliRunner

from fastreader.cli import app
from fastreader.cli.demo import bundled, flip, verdicts
from fastreader.core.tree import TreeStats
from fastreader.scoring.results import PermutationScores


def scores(example, winners):
    """Scores over the cyclic orders, in which candidate `winners[m]` wins order m."""
    count, width = len(example.passages), len(example.candidates)
    logprobs = np.full((count, width), -5.0)
    logprobs[np.arange(count), winners] = -1.0
    return PermutationScores(
        question=example.question, candidates=example.candidates, logprobs=logprobs,
        permutations=np.array([[(m + p) % count for p in range(count)] for m in range(count)]),
        question_logprobs=np.zeros(count), candidate_tokens=np.ones(width, dtype=int), question_tokens=1,
        passages_tokens=np.ones(count, dtype=int), greedy=np.zeros((count, width), dtype=bool),
        stats=TreeStats(1, 1, 1, 1), seconds=0.0, reader={}, design="cyclic",
    )  # fmt: skip


def right_of(example):
    return next(k for k, c in enumerate(example.candidates) if c in example.answers)


def test_every_bundled_question_has_one_right_candidate():
    examples = bundled()
    assert len(examples) >= 10 and len({e.id for e in examples}) == len(examples)
    for example in examples:
        assert sum(candidate in example.answers for candidate in example.candidates) == 1
        assert sum(bool(passage.is_gold) for passage in example.passages) == 1


def test_right_and_wrong_are_marked():
    example = bundled()[0]
    right, wrong = right_of(example), (right_of(example) + 1) % len(example.candidates)
    table = verdicts([example], [scores(example, [right, right, wrong])])
    cells = [str(next(iter(column.cells))) for column in table.columns]
    assert cells[1:] == [f"{example.candidates[right]} right", "2 of 3", f"{example.candidates[right]} right"]


@pytest.mark.parametrize("flips", [True, False])
def test_an_order_that_flips_the_answer_is_shown(flips):
    example = bundled()[0]
    right, wrong = right_of(example), (right_of(example) + 1) % len(example.candidates)
    shown = flip([example], [scores(example, [wrong, right if flips else wrong, wrong])])
    text = "\n".join(map(str, getattr(shown, "renderables", [shown])))
    assert (f"{example.candidates[right]} right" in text) is flips
    assert flips or "No question changes its answer" in text


def test_it_runs_with_any_reader(tmp_path):
    tiny_llama(max_position_embeddings=4096).save_pretrained(tmp_path)
    byte_tokenizer(chat=True).save_pretrained(tmp_path)
    done = CliRunner().invoke(app, ["demo", "--model", str(tmp_path), "--precision", "exact"])
    assert done.exit_code == 0, done.output
    assert "transformers, batches of 8" in done.output and "Next: fastreader" in done.output
