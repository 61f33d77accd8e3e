"""fastreader demo: what it shows holds for this reader, and what it says of the study holds in its stored rows."""

import io
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from helpers.support import byte_tokenizer, tiny_llama
from rich.console import Console
from typer.testing import CliRunner

from fastreader import Reader, arrange, rerank, score_permutations
from fastreader.cli import app
from fastreader.cli.demo import STUDY, bundled, flips, plain_scores
from fastreader.cli.tables.scores import heat_map
from fastreader.core.tree import TreeStats
from fastreader.scoring.results import PermutationScores

pytestmark = pytest.mark.usefixtures("loaded_once")

REPORT = Path(__file__).parents[2] / "studies" / "results" / "evidence" / "report.json"


def scores(winners):
    """Scores of the demo's question over its cyclic orders, in which candidate `winners[m]` wins order m."""
    example = bundled()[0]
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


def shown(table, **options):
    out = io.StringIO()
    Console(file=out, width=80, **options).print(table)
    return out.getvalue()


def test_the_bundled_questions_have_one_right_passage_where_the_demo_says():
    orders, ranking = bundled()
    assert orders.answers[0] in orders.candidates
    assert [passage.is_gold for passage in orders.passages] == [True, False, False, False, False]
    assert [passage.is_gold for passage in ranking.passages] == [False, False, False, False, True]


@pytest.mark.parametrize("precision", ["fast", "exact"])
@pytest.mark.long(keep=1)
def test_the_packaged_reader_flips_and_arranging_mends_it(packaged_folder, precision):
    reader = Reader.load(packaged_folder.name, precision=precision)
    orders, ranking = bundled()
    (found,) = score_permutations(reader, [orders])
    right = [found.candidates[k] in orders.answers for k in found.logprobs.argmax(axis=1)]
    assert right[:4] == [False, True, True, True]
    assert found.probabilities()[0].max() > 0.6
    arranged = arrange(orders.passages, reader)
    (after,) = score_permutations(reader, [replace(orders, passages=arranged)], permutations="identity")
    assert after.best in orders.answers and after.probabilities()[0].max() > 0.9
    assert rerank(reader, ranking.question, ranking.passages)[0].passage.is_gold


@pytest.mark.parametrize(("winners", "said"), [([0, 1, 0, 0, 0], "another answer: "), ([1] * 5, "no flip here")])
def test_a_flip_is_claimed_only_if_there_is_one(winners, said):
    assert said in flips(scores(winners))


def test_a_heat_map_fits_80_columns_and_needs_no_colour():
    found = scores([0, 1, 2, 3, 0])
    plain = shown(heat_map(found, shaded=False))
    assert plain.isascii() and max(map(len, plain.splitlines())) <= 80
    assert plain.count("*") == 5 and "0.95* ########" in plain and "2 3 4 5 1" in plain
    coloured = shown(heat_map(found, shaded=True), force_terminal=True, color_system="truecolor")
    assert "\x1b[1;37;48;2;" in coloured and "#" not in coloured and "0.95*" in coloured


def test_plain_scores_are_those_of_the_packed_pass(tiny_reader):
    sequences = [([1, 2, 3, 4], [5, 6]), ([1, 2, 3], [7]), ([9], [8, 7, 6])]
    plain = plain_scores(tiny_llama(), sequences)
    np.testing.assert_allclose(tiny_reader.score(sequences).logprob, plain, atol=1e-4)


def test_the_line_about_the_study_is_in_its_stored_rows():
    stored = json.loads(REPORT.read_text())["smollm2-135m, N = 5, cross-fitted"]
    against = stored["methods"]["arrange-bm25"]["against"]["nats"]
    assert stored["questions"] == STUDY["questions"]
    for name in ("estimate", "low", "high"):
        assert round(against[name], 2) == STUDY[name]


def test_it_runs_with_any_reader(tmp_path):
    tiny_llama(max_position_embeddings=4096).save_pretrained(tmp_path)
    byte_tokenizer(chat=True).save_pretrained(tmp_path)
    done = CliRunner().invoke(app, ["demo", "--model", str(tmp_path), "--precision", "exact"])
    assert done.exit_code == 0, done.output
    assert "No position bias is known for this reader" in done.output
    assert "times as fast" in done.output and "That is rounding" not in done.output
    assert "[0.46, 0.82]" in done.output and "Next: fastreader score" in done.output
