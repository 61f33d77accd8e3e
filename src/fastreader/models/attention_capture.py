"""Attention weights of chosen tokens, captured inside a packed pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fastreader.core.checks import expect
from fastreader.core.tree import PrefixTree
from fastreader.errors import UnsupportedModelError
from fastreader.models.config.windows import Chunk, Window
from fastreader.models.machine.devices import moved
from fastreader.models.passes.packed_keys import AttentionParams, TreeKeys
from fastreader.models.tree_model import TreeModel

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True)
class CaptureRequest:
    """A text and the parts of it whose attention is captured.

    Attributes:
        prompt: token ids.
        answer: token ids after the prompt; their attention is captured.
        spans: (start, end) of the parts of the prompt to report, in tokens.
    """

    prompt: Sequence[int]
    answer: Sequence[int]
    spans: Sequence[tuple[int, int]]


@dataclass(frozen=True, eq=False)
class CapturedAttention:
    """Attention of the answer of one `CaptureRequest`.

    Attributes:
        attention: float64 [layers, spans], mean over heads, answer tokens and the span's tokens.
        entropy: float64 [layers], nats, of the attention over the prompt's tokens only, normalised to sum to 1; mean
            over heads and answer tokens. NaN if no answer token sees the prompt, as with a narrow window.
    """

    attention: FloatArray
    entropy: FloatArray


def capture_attention(
    model: TreeModel, tree: PrefixTree, requests: Sequence[CaptureRequest]
) -> list[CapturedAttention]:
    """Run a tree and capture the attention of its sequences' answers.

    Args:
        tree: packed from the requests' whole texts (prompt and answer), without continuations.
        requests: one for each sequence of the tree.

    Raises:
        InputError: if an answer is empty, or a span is empty or not inside its prompt.
        UnsupportedModelError: if a layer needs something that the packed pass does not compute.
    """
    for i, request in enumerate(requests):
        expect(len(request.answer) > 0, f"requests[{i}]", "an answer of at least one token", request.answer)
        length = len(request.prompt)
        odd = [span for span in request.spans if not 0 <= span[0] < span[1] <= length]
        expect(not odd, f"requests[{i}]", f"spans within its {length} tokens", odd)
    keys = _CapturingKeys(tree, requests, len(model.windows), model.device)
    model.forward(tree.token_ids, tree.positions, keys)
    keys.check_calls(model.name)
    return keys.captured


class _CapturingKeys(TreeKeys):
    """Keys of a tree that also capture the attention of each sequence's last tokens.

    A token sees only the tokens on its path to the root, so a captured row costs its own length, not the tree's.
    """

    def __init__(self, tree: PrefixTree, requests: Sequence[CaptureRequest], layers: int, device: torch.device) -> None:
        super().__init__(tree, device)
        self._requests, self._layers, self._calls = requests, layers, 0
        self._paths = [torch.tensor(tree.path(int(leaf)), device=device) for leaf in tree.leaves]
        self.captured = [CapturedAttention(np.zeros((layers, len(r.spans))), np.zeros(layers)) for r in requests]

    def check_calls(self, model_name: str) -> None:
        """Raise UnsupportedModelError if there was not one attention call for each layer."""
        if self._calls != self._layers:
            raise UnsupportedModelError(
                f"{model_name}: expected an attention call of each of {self._layers} layers, got {self._calls}; "
                "attention of a layer is captured only if the layer attends once"
            )

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, params: AttentionParams) -> Tensor:
        self._calls += 1
        if self._calls > self._layers:
            return super().attend(layer, query, key, value, params)
        self._paths = moved(self._paths, key.device)
        for request, path, captured in zip(self._requests, self._paths, self.captured, strict=True):
            rows = attention_rows(
                query[path[-len(request.answer) :]],
                key[path],
                params.scale,
                window=params.window,
                softcap=params.softcap,
                sinks=params.sinks,
                slopes=params.slopes,
            )
            running = np.concatenate([[0.0], rows.mean((0, 1)).double().cumsum(0).cpu().numpy()])
            for i, (start, end) in enumerate(request.spans):
                captured.attention[layer, i] = (running[end] - running[start]) / (end - start)
            captured.entropy[layer] = _entropy(rows[:, :, : len(request.prompt)])
        return super().attend(layer, query, key, value, params)


def attention_rows(
    query: Tensor,
    key: Tensor,
    scale: float,
    *,
    window: Window = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    slopes: Tensor | None = None,
) -> Tensor:
    """Return softmax(softcap(scale q K)) of a sequence's last tokens over the whole sequence: [Hq, R, L].

    Products and softmax are in float32, or float64 for float64 inputs. With sinks a row sums to less than 1.

    Args:
        query: [R, Hq, D], of the last R tokens.
        key: [L, Hk, D], of all tokens; Hq is a multiple of Hk.
        scale: factor on the products.
        window: number of tokens that a row sees, itself included, or a chunk; None for all before it.
        softcap: scores become softcap * tanh(scores / softcap).
        sinks, slopes: [Hq], see `tree_attention`.
    """
    dtype = torch.float64 if query.dtype == torch.float64 else torch.float32
    rows, heads, size = query.shape
    length, key_heads, _ = key.shape
    grouped = query.to(dtype).transpose(0, 1).reshape(key_heads, heads // key_heads, rows, size)
    keys = key.to(dtype).permute(1, 2, 0)[:, None]  # [Hk, 1, D, L]
    scores = (grouped @ keys).reshape(heads, rows, length) * scale
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    place = torch.arange(length, device=key.device)
    own = place[length - rows :, None]
    visible = own >= place
    if isinstance(window, Chunk):
        visible &= own // window.tokens == place // window.tokens
    elif window is not None:
        visible &= own - place < window
    if slopes is not None:
        scores = scores + slopes.to(dtype)[:, None, None] * (place - own)
    scores = scores.masked_fill(~visible, -torch.inf)
    if sinks is None:
        return scores.softmax(-1)
    return torch.cat([scores, sinks.to(dtype)[:, None, None].expand(-1, rows, 1)], dim=-1).softmax(-1)[..., :-1]


def _entropy(attention: Tensor) -> float:
    """Return the mean entropy of rows [Hq, R, L] in nats, each normalised to sum to 1, without rows of zeros."""
    total = attention.sum(-1, keepdim=True)
    entropies = torch.special.entr(attention / total).sum(-1)[total[..., 0] > 0]
    return float(entropies.double().mean()) if len(entropies) else float("nan")
