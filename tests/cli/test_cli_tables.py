import io

import pytest
from helpers.commands import ONE, made_up, run
from rich.console import Console

from fastreader import Reader
from fastreader.cli.tables.scores import UNLIMITED, scores_table
from fastreader.scoring import api as scoring


def shown(scores, width):
    out = io.StringIO()
    Console(width=UNLIMITED, file=out).print(scores_table(scores, width))
    return out.getvalue()


def test_tables_cut_no_number():
    scores = made_up([f"candidate number {k} of the list" for k in range(8)], worst=-12345.67)
    numbers = [f"{value:.2f}" for value in scores.logprobs.ravel()]
    piped = shown(scores, None)
    assert piped.startswith("What?\n")
    assert all(number in piped for number in numbers) and "not shown" not in piped
    for width in (40, 80, 120):
        text = shown(scores, width)
        table = text[: text.index("Log-likelihoods")].splitlines()
        box = [line for line in table if line[0] in "┏┃┡│├└"]
        assert max(map(len, box)) <= width
        head = next(line for line in box if line.startswith("┃"))
        count = head.count("┃") - 3
        assert 1 <= count < 8 and f"{8 - count} more candidates" in text
        assert numbers[-1] in text and numbers[7] in text  # of the largest share, which is the last
        assert "…" not in "".join(line for line in box if line.startswith("│"))


def test_tables_of_many_candidates_and_passages():
    many = made_up([f"c{k}" for k in range(20)], orders=[list(range(30))])
    text = shown(many, 160)
    assert "12 more candidates" in text and "c19" in text and "c12" in text and "c11" not in text
    text = shown(many, 80)  # the reading order is folded, the numbers are not
    assert "16 more candidates" in text and "c16" in text and "c15" not in text
    assert max(map(len, text.splitlines())) <= 80
    assert "│ 22 23 24 25 26 27 28 29 30 │" in text
    assert "question" in shown(made_up([]), 80)
    assert "two lines" in shown(made_up(["two\nlines"]), 80)


def test_a_terminal_gets_a_table_that_fits(monkeypatch):
    many = made_up([f"candidate {k}" for k in range(30)])
    monkeypatch.setattr(Reader, "load", lambda *_, **__: None)
    monkeypatch.setattr(scoring, "score_permutations", lambda *_, **__: iter([many]))
    assert "22 more candidates" in run("score", *ONE, COLUMNS="40").stdout
    assert "28 more candidates" in run("score", *ONE, COLUMNS="70", FORCE_COLOR="1", NO_COLOR="1").stdout


@pytest.mark.parametrize("command", ["rerank", "moi"])
def test_a_narrow_ranking_cuts_passages_and_no_number(model, command):
    long = "This passage is longer than a terminal of eighty columns, so that its end is cut off. " * 2
    out = run(command, "-m", model, "-q", "What?", "-p", long, "-p", "That.", COLUMNS="80").stdout
    head, *rows = [line for line in out.splitlines() if line[:1] in "┃│"]
    assert "rank" in head and all(len(line) == 80 for line in [head, *rows])
    assert any("…" in line for line in rows)
    for line in rows:
        assert all(cell.strip() and "…" not in cell for cell in line.strip("│").split("│")[:3])
