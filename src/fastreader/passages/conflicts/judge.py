"""Derive supports, a consensus and the odd passage from the evidence, without a reader."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
# Chosen on made counterfactuals (studies/conflicts.py), where the results hardly depend on them.
_PULL, _TEXT = 2.0, 0.3  # nats by which one passage's reading can move the consensus; weight of its text in it
_AGAINST, _CLIP, _SILENT = 0.2, 10.0, -2.0  # weight of the reading, bound of the text, and the text of no claim


@dataclass(frozen=True, eq=False)
class Verdict:
    """Conclusions from the evidence, with attributes as in `Conflicts`."""

    supports: list[int | None]
    consensus: int | None
    odd_scores: FloatArray


def judge(ratios: FloatArray, texts: FloatArray) -> Verdict:
    """Judge which candidate the passages agree on and which passage contradicts it.

    With r the log-probability ratios and t the texts (NaN where not scored, 0 at a passage's own claim):

    - the consensus is the candidate k of the largest ``sum_i clip(r_ik - max_{l != k} r_il, -2, 2) + 0.3 (t_ik -
      max_{l != k} t_il)``: readings of the passages, which a single one cannot dominate, and their texts;
    - the odd score of passage i is ``clip(max_{l != own claim} t_il, -10, 10) + 0.2 (max_{l != k} r_il - r_ik)``, with
      -2 as the first term of a passage that states no candidate: its own text, then its reading, speaks against it.

    Args:
        ratios: float64 [N, K], K >= 1.
        texts: float64 [N, K].
    """
    count = ratios.shape[1]
    supports = [int(row.argmax()) if row.max() > 0 else None for row in ratios]
    if count < 2:
        return Verdict(supports, 0 if any(s is not None for s in supports) else None, np.full(len(ratios), _SILENT))
    known = np.where(np.isnan(texts), -np.inf, texts)
    stating = np.array([not np.isnan(row).all() for row in texts])
    leads = known - np.where(stating[:, None], _others(known), 0.0)
    text_leads = np.where(np.isfinite(leads), leads, 0.0)  # 0 without a claim, or without another candidate
    total = (np.clip(ratios - _others(ratios), -_PULL, _PULL) + _TEXT * text_leads).sum(axis=0)
    best = int(total.argmax())
    # The own claim, which has 0, is left out; a claim that nothing replaced is taken to fit its text.
    rivals = np.array([np.delete(row, np.flatnonzero(row == 0)[:1]).max(initial=-_CLIP) for row in known])
    against = np.where(stating, np.clip(rivals, -_CLIP, _CLIP), _SILENT)
    return Verdict(supports, best, against + _AGAINST * (_others(ratios)[:, best] - ratios[:, best]))


def _others(values: FloatArray) -> FloatArray:
    """Return for each element the largest of the others in its row: float64 [N, K], K >= 2."""
    top = np.sort(values, axis=1)[:, -2:]
    first = values == top[:, 1:]
    return np.where(first, top[:, :1], top[:, 1:])
