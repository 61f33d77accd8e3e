"""Scores of one question as rich tables: permutations x candidates, in nats or as probabilities."""

from __future__ import annotations

import numpy as np
from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.table import Table

from fastreader.cli.screen import Text
from fastreader.scoring.results import FloatArray, PermutationScores

UNLIMITED = 10_000  # columns: a width at which nothing here is shrunk
_MOST = 8  # candidates shown
_HEAD = 28  # characters of a candidate in a column head, folded
_NARROW = 12  # to this width, or the numbers', where there is little room
_AROUND = 3  # what a column takes besides its text: two blanks and a border


def scores_table(scores: PermutationScores, width: int | None = None) -> RenderableType:
    """One question: permutations x candidates in nats, what sharing saved, and the most likely candidate.

    Columns have the widths their numbers need, so print it on a console of `UNLIMITED` width.

    Args:
        scores: of one question.
        width: columns of the terminal. If not all candidates fit, or there are more than eight, only the ones with
            the largest consensus are shown, in the order given. None sets no limit.
    """
    count = len(scores.candidates)
    share = scores.consensus() if count else np.zeros(0)
    orders = [" ".join(str(p + 1) for p in order) for order in scores.permutations.tolist()]
    questions = [f"{value:.2f}" for value in scores.question_logprobs]
    values = [[f"{value:.2f}" for value in column] for column in scores.logprobs.T]
    order_width = max(map(len, ["reading order", *orders]))
    if width is not None:  # a long reading order is folded
        order_width = min(order_width, max(width // 3, len("reading order")))
    question_width = max(map(len, ["question", *questions]))
    room = UNLIMITED if width is None else width - 1 - order_width - question_width - 2 * _AROUND
    head = max(1, min(max(_NARROW, room // max(1, min(count, _MOST)) - _AROUND), room - _AROUND))
    names = [_shortened(text, _HEAD) for text in scores.candidates]
    widths = [max(min(cell_len(name), head), *map(len, column)) for name, column in zip(names, values, strict=True)]
    shown = _choose(share, widths, room)

    table = Table(header_style="bold")
    table.add_column("reading order", width=order_width, overflow="fold")
    table.add_column("question", justify="right", width=question_width)
    for k in shown:
        table.add_column(Text(names[k]), justify="right", width=widths[k], overflow="fold")
    leaders = scores.logprobs.argmax(axis=1) if count else []
    for m, order in enumerate(orders):
        cells = [Text(values[k][m], style="bold green" if leaders[m] == k else "") for k in shown]
        table.add_row(Text(order), Text(questions[m]), *cells)
    parts: list[RenderableType] = [Text(scores.question, style="bold"), table]
    if count:
        table.add_section()
        table.add_row("mean share", "", *(f"{share[k]:.2f}" for k in shown))
        if len(shown) < count:
            parts.append(
                Text(f"{count - len(shown)} more candidates, of smaller share, are not shown; the JSON has all.")
            )
        wins = int((scores.logprobs.argmax(axis=1) == share.argmax()).sum())
        line = Text("Most likely: ")
        line.append(scores.best or "", style="bold green")
        line.append(f" (share {share.max():.2f} over all orders, ahead in {wins} of {len(scores.logprobs)})")
        parts.append(line)
    stats = scores.stats
    parts.append(
        Text(
            f"Log-likelihoods in nats. {stats.total_tokens:,} tokens given, {stats.computed_tokens:,} computed, "
            f"{stats.saved:.0%} saved; {scores.seconds:.1f} s."
        )
    )
    if scores.dropped_passages:
        dropped = ", ".join(str(p + 1) for p in scores.dropped_passages)
        parts.append(Text(f"Passages {dropped} were dropped: the prompt was too long.", style="yellow"))
    if scores.truncated_tokens:
        cut = ", ".join(f"{p + 1} (-{n})" for p, n in scores.truncated_tokens.items())
        parts.append(Text(f"Passages were truncated, tokens cut off: {cut}.", style="yellow"))
    return Group(*parts)


def _choose(share: FloatArray, widths: list[int], room: int) -> list[int]:
    """Candidates to show, at least one: by share, as many as fit next to each other."""
    shown: list[int] = []
    for k in np.argsort(-share, kind="stable").tolist()[:_MOST]:
        room -= widths[k] + _AROUND
        if shown and room < 0:
            break
        shown.append(k)
    return sorted(shown)


def _shortened(text: str, width: int) -> str:
    short = Text(" ".join(text.split()))
    short.truncate(width, overflow="ellipsis")
    return short.plain


_WIDTH = 14  # characters of a cell
_PALE, _DARK = np.array([247, 251, 255]), np.array([8, 48, 107])  # colours of probability 0 and 1


def heat_map(scores: PermutationScores, shaded: bool) -> Table:
    """Show orderings x candidates, with an asterisk at the answer of each ordering.

    Args:
        scores: of one question.
        shaded: shade the cells; without it, a bar of number signs follows each number.
    """
    table = Table(header_style="bold", box=None, padding=(0, 1, 0, 0))
    table.add_column("order read", no_wrap=True)
    for candidate in scores.candidates:
        table.add_column(Text(candidate), width=_WIDTH, justify="center" if shaded else "left")
    for order, row in zip(scores.permutations.tolist(), scores.probabilities().tolist(), strict=True):
        cells = [_cell(value, value == max(row), shaded) for value in row]
        table.add_row(" ".join(str(p + 1) for p in order), *cells)
    return table


def _cell(probability: float, leads: bool, shaded: bool) -> Text:
    number = f"{probability:.2f}{'*' if leads else ' '}"
    if not shaded:
        return Text(f"{number} {'#' * round(8 * probability)}")
    red, green, blue = np.rint(_PALE + probability * (_DARK - _PALE)).astype(int).tolist()
    ink = "white" if probability > 0.5 else "black"
    return Text(number.center(_WIDTH), style=f"{'bold ' if leads else ''}{ink} on rgb({red},{green},{blue})")
