"""Rich tables for the terminal."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from fastreader.scores import PermutationScores

_WIDTH = 28  # characters of a candidate in a column head


def scores_table(scores: PermutationScores) -> RenderableType:
    """One question: permutations x candidates in nats, what sharing saved, and the most likely candidate."""
    table = Table(title_justify="left", header_style="bold", title_style="bold")
    table.title = Text(scores.question)
    table.add_column("reading order", no_wrap=True)
    table.add_column("question", justify="right")
    for candidate in scores.candidates:
        table.add_column(
            Text(candidate if len(candidate) <= _WIDTH else candidate[: _WIDTH - 1] + "…"), justify="right"
        )
    leaders = scores.loglik.argmax(axis=1) if scores.candidates else []
    for m, order in enumerate(scores.permutations.tolist()):
        cells = [Text(" ".join(str(p + 1) for p in order)), Text(f"{scores.question_loglik[m]:.2f}")]
        cells += [
            Text(f"{scores.loglik[m, k]:.2f}", style="bold green" if leaders[m] == k else "")
            for k in range(len(scores.candidates))
        ]
        table.add_row(*cells)
    parts: list[RenderableType] = [table]
    if scores.candidates:
        table.add_section()
        share = scores.consensus()
        table.add_row("mean share", "", *(f"{s:.2f}" for s in share))
        wins = int((scores.loglik.argmax(axis=1) == share.argmax()).sum())
        line = Text("Most likely: ")
        line.append(scores.best or "", style="bold green")
        line.append(f" (share {share.max():.2f} over all orders, ahead in {wins} of {len(scores.loglik)})")
        parts.append(line)
    stats = scores.stats
    parts.append(
        Text(
            f"Log-likelihoods in nats. {stats.given:,} tokens given, {stats.computed:,} computed, "
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
