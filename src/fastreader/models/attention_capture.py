"""Attention of chosen tokens, taken inside a packed pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fastreader.core.tree import PrefixTree
from fastreader.errors import InputError
from fastreader.models.adapter import TreeModel
from fastreader.models.attention_keys import Keys, Scores, TreeKeys

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Reading:
    """A text whose last tokens are watched.

    Attributes:
        prompt: token ids.
        answer: token ids after it; their attention is taken.
        spans: (start, end) of the parts of the prompt whose attention is wanted, in tokens.
    """

    prompt: Sequence[int]
    answer: Sequence[int]
    spans: Sequence[tuple[int, int]]


@dataclass(frozen=True, eq=False)
class Watched:
    """What the answer of one `Reading` attends to.

    Attributes:
        attention: float64 [layers, spans], mean over heads, answer tokens and the span's tokens.
        entropy: float64 [layers], nats, of the attention over the prompt's tokens alone, normalised to sum to 1; mean
            over heads and answer tokens. Not a number where no answer token sees the prompt, as in a narrow window.
    """

    attention: FloatArray
    entropy: FloatArray


def watch(model: TreeModel, tree: PrefixTree, readings: Sequence[Reading]) -> list[Watched]:
    """Run a tree and take the attention of its sequences' answers.

    Args:
        model: what runs.
        tree: packed from the readings' whole texts (prompt and answer), without continuations.
        readings: by sequence of the tree.

    Raises:
        InputError: a reading without an answer, or a span that is empty or not of its prompt.
        UnsupportedModelError: a layer asks for something the packed pass does not compute.
    """
    for i, reading in enumerate(readings):
        if not len(reading.answer):
            raise InputError(f"readings[{i}]: expected an answer of at least one token, got none")
        if odd := [span for span in reading.spans if not 0 <= span[0] < span[1] <= len(reading.prompt)]:
            raise InputError(f"readings[{i}]: expected spans within its {len(reading.prompt)} tokens, got {odd[0]}")
    keys = _WatchedKeys(TreeKeys(tree, model.device), tree, readings, len(model.windows), model.device)
    model.forward(tree.token_ids, tree.positions, keys)
    return keys.watched


class _WatchedKeys:
    """Attention as `keys` computes it, while that of chosen rows is taken.

    The tokens a row sees are those on its path to the root, so that a row costs its own length, not the tree's.
    """

    def __init__(
        self, keys: Keys, tree: PrefixTree, readings: Sequence[Reading], layers: int, device: torch.device
    ) -> None:
        self._keys = keys
        self._readings = readings
        self._paths = [torch.tensor(tree.path(int(leaf)), device=device) for leaf in tree.leaves]
        self.watched = [Watched(np.zeros((layers, len(r.spans))), np.zeros(layers)) for r in readings]

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scores: Scores) -> Tensor:
        """As `Keys.attend`."""
        for reading, path, watched in zip(self._readings, self._paths, self.watched, strict=True):
            rows = attention_rows(
                query[path[-len(reading.answer) :]], key[path], scores.scale, scores.window, scores.softcap
            )
            running = np.concatenate([[0.0], rows.mean((0, 1)).double().cumsum(0).cpu().numpy()])
            for i, (start, end) in enumerate(reading.spans):
                watched.attention[layer, i] = (running[end] - running[start]) / (end - start)
            watched.entropy[layer] = _entropy(rows[:, :, : len(reading.prompt)])
        return self._keys.attend(layer, query, key, value, scores)


def attention_rows(
    query: Tensor, key: Tensor, scale: float, window: int | None = None, softcap: float | None = None
) -> Tensor:
    """softmax(softcap(scale q K)) of the last tokens of a sequence over all of it: [Hq, R, L].

    Products and softmax are in float32, or float64 for float64 inputs.

    Args:
        query: [R, Hq, D], of the last R tokens.
        key: [L, Hk, D], of all; Hq is a multiple of Hk.
        scale: on the products.
        window: a row sees so many tokens at most, itself included; None for all before it.
        softcap: scores become softcap * tanh(scores / softcap).
    """
    wide = torch.float64 if query.dtype == torch.float64 else torch.float32
    rows, heads, size = query.shape
    length, key_heads, _ = key.shape
    grouped = query.to(wide).transpose(0, 1).reshape(key_heads, heads // key_heads, rows, size)
    keys = key.to(wide).permute(1, 2, 0)[:, None]  # [Hk, 1, D, L]
    scores = (grouped @ keys).reshape(heads, rows, length) * scale
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    behind = torch.arange(length - rows, length, device=key.device)[:, None] - torch.arange(length, device=key.device)
    visible = behind >= 0 if window is None else (behind >= 0) & (behind < window)
    return scores.masked_fill(~visible, -torch.inf).softmax(-1)


def _entropy(attention: Tensor) -> float:
    """Mean entropy [nats] of rows [Hq, R, L], each normalised to sum to 1; rows of zeros are left out."""
    total = attention.sum(-1, keepdim=True)
    share = attention / total
    entropies = torch.special.entr(share).sum(-1)[total[..., 0] > 0]
    return float(entropies.double().mean()) if len(entropies) else float("nan")
