"""The paper's numbers (Llama2-7B: tables 1 to 3, and its claim about entropy), and ours.

An asterisk in the paper means that a difference is NOT significant.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fastreader.noise import NoiseSummary
from fastreader.noise.tables import SIGNIFICANT, differs
from fastreader.statistics import Contrast, bootstrap, paired_bootstrap, sign_flip

GOLD = 0.5642
ENTROPY = 3.0
"""Factor by which random passages raise the entropy of attention; the paper gives no formula."""


@dataclass(frozen=True)
class Published:
    """A published accuracy against its baseline's.

    Attributes:
        accuracy, baseline: as in the table.
        significant: whether the paper finds their difference significant (Wilcoxon, p < 0.01).
    """

    accuracy: float
    baseline: float
    significant: bool = True

    @property
    def difference(self) -> float:
        """Accuracy less the baseline's."""
        return round(self.accuracy - self.baseline, 4)


def _oracle(name: str, far: float, mid: float | None, near: float, starred: str = "") -> dict[str, Published]:
    values = {"far": far, "mid": mid, "near": near}
    return {f"{name}:{p}": Published(v, GOLD, p != starred) for p, v in values.items() if v is not None}


def _realistic(count: int, *cells: tuple[int, float, bool]) -> dict[str, Published]:
    return {f"retrieved:{k}+random:{count}": Published(value, BM25[k], significant) for k, value, significant in cells}


BM25 = {1: 0.2008, 2: 0.2208, 3: 0.2084, 4: 0.2028, 5: 0.2243, 8: 0.2492, 10: 0.2447}
"""Retrieved passages alone, by their number (table 3, BM25, as our questions' passages were retrieved)."""

PUBLISHED: dict[str, Published] = {
    **_oracle("distracting:1", 0.4586, None, 0.4283),
    **_oracle("distracting:2", 0.3455, 0.3322, 0.3974),
    **_oracle("distracting:4", 0.2745, 0.2857, 0.3795),
    **_oracle("distracting:8", 0.2643, 0.2268, 0.3748),
    **_oracle("random:1", 0.4733, None, 0.4862),
    **_oracle("random:2", 0.3776, 0.3928, 0.5032),
    **_oracle("random:4", 0.3109, 0.3998, 0.5221),
    **_oracle("random:8", 0.3106, 0.3734, 0.5609, starred="near"),
    **_realistic(1, (1, 0.1568, True), (2, 0.1963, True), (3, 0.1921, True), (4, 0.2115, True), (5, 0.2295, False)),
    **_realistic(1, (8, 0.2475, False), (10, 0.2506, False)),
    **_realistic(2, (1, 0.1644, True), (2, 0.1973, True), (3, 0.2080, False), (4, 0.2281, True), (5, 0.2558, True)),
    **_realistic(2, (8, 0.2495, False), (10, 0.2596, True)),
    **_realistic(5, (1, 0.1772, True), (2, 0.2402, True), (3, 0.2437, True), (4, 0.2520, True), (5, 0.2554, True)),
    **_realistic(5, (8, 0.2804, True), (10, 0.2866, True)),
    **_realistic(8, (1, 0.1994, True), (2, 0.2451, True), (3, 0.2579, True), (4, 0.2769, True), (5, 0.2817, True)),
    **_realistic(8, (8, 0.2859, True), (10, 0.2777, True)),
    **_realistic(15, (1, 0.2243, True), (2, 0.2686, True), (3, 0.2790, True), (4, 0.2928, True)),
}


def verdict(ours: Contrast, paper: Published) -> str:
    """Compare which of the two differences are significant, and their signs if both are."""
    if not paper.significant:
        return "neither significant" if not differs(ours) else "paper: not significant"
    if not differs(ours):
        return "ours: not significant"
    return "same sign" if (ours.difference.estimate > 0) == (paper.difference > 0) else "opposite sign"


def agreement(summary: NoiseSummary) -> tuple[str, dict[str, dict[str, object]]]:
    """Return our differences and the paper's, as Markdown and as JSON values."""
    rows = {c.name: (c, PUBLISHED[c.name]) for c in summary.comparison.contrasts if c.name in PUBLISHED}
    table = ["| layout | against | ours | p, Holm | paper | |", "| - | - | - | - | - | - |"]
    found: dict[str, dict[str, object]] = {}
    for name, (ours, paper) in rows.items():
        d, found_verdict = ours.difference, verdict(ours, paper)
        star = "" if paper.significant else "*"
        table.append(
            f"| {name} | {ours.baseline} | {d.estimate:+.3f} [{d.low:+.3f}, {d.high:+.3f}] | {ours.p_holm:.2g} "
            f"| {paper.difference:+.3f}{star} | {found_verdict} |"
        )
        found[name] = {
            "ours": d.to_dict(),
            "p_holm": ours.p_holm,
            "paper": paper.difference,
            "paper_significant": paper.significant,
            "verdict": found_verdict,
        }
    text = (
        "Differences next to the paper's (Llama2-7B; 10,000 questions with the gold passage given, 2,889 with BM25's "
        f"retrieved alone). *: not significant in the paper. Ours is significant if the p value, Holm-corrected "
        f"except for the primary contrast, is below {SIGNIFICANT}.\n\n"
    )
    return text + "\n".join(table), found


def entropy_ratios(
    entropies: Mapping[str, Sequence[float]], scaled: Mapping[str, Sequence[float]], clusters: Sequence[object]
) -> tuple[str, dict[str, dict[str, object]]]:
    """Compare the entropy of attention under each layout with that under gold alone. The paper reports 3 times."""
    header = "| layout | entropy, nats | over gold alone | less gold alone | p | over log of prompt tokens |"
    table, found = [header, "| - | - | - | - | - | - |"], {}
    gold = entropies["gold"]
    for name, values in entropies.items():
        mean, share = bootstrap(values, clusters=clusters), bootstrap(scaled[name], clusters=clusters)
        more = paired_bootstrap(values, gold, clusters=clusters)
        ratio = bootstrap([v / g for v, g in zip(values, gold, strict=True)], clusters=clusters)
        p = sign_flip(values, gold, clusters=clusters)
        table.append(f"| {name} | {mean} | {ratio} | {more} | {p:.2g} | {share} |")
        found[name] = {
            "nats": mean.to_dict(),
            "over_gold": ratio.to_dict(),
            "less_gold": more.to_dict(),
            "p": p,
            "normalised": share.to_dict(),
        }
    text = (
        "Entropy of the attention of the answers' tokens over the prompt's tokens, mean over heads, layers and "
        f"{len(gold)} questions; p by sign flips of gold passages. The paper reports {ENTROPY:g} times the entropy "
        "with random passages, and gives no formula.\n\n"
    )
    return text + "\n".join(table), found
