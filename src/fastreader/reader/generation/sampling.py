"""Choose the next token from logits by temperature, top-k, top-p and one uniform number, or greedily.

Each row has its own random generator, keyed by the seed, its prompt's tokens and its sample number, so its draws do not
depend on other rows or on how rows were packed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fastreader.core.options import Sampling, StepOptions
from fastreader.models.passes.logit_head import most_likely_tokens
from fastreader.ops import triton_support

_BLOCK = 256  # weights added up at once, and candidates of a nucleus looked at first


def row_generator(seed: int, prompt: Sequence[int], sample: int) -> np.random.Generator:
    """Return the generator of sample number `sample` of a prompt."""
    text = np.asarray([seed, sample, *prompt], dtype="<i8").tobytes()
    key = int.from_bytes(hashlib.blake2b(text, digest_size=16).digest(), "little")
    return np.random.Generator(np.random.Philox(key=key))


def most_likely(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Return each row's most likely token, the first of equals, and its logit.

    NaN counts as the largest.

    Args:
        logits: [R, V], float32 or float64.

    Returns:
        int64 [R], and [R] in the type of the logits.
    """
    # On the CPU NumPy compares a vector at a time, torch one value.
    cpu = logits.device.type == "cpu"
    tokens = torch.from_numpy(logits.numpy().argmax(axis=-1)) if cpu else logits.argmax(dim=-1)
    return tokens, logits.gather(1, tokens[:, None])[:, 0]


class Picked(NamedTuple):
    """The next tokens of R rows.

    Attributes:
        tokens: int64 [R].
        highest: [R], each row's largest logit.
        logprobs: float64 [R], of the tokens, nats; None unless requested.
        top: int64 and float64 [R, K], the K most likely tokens and their log-probabilities; None unless requested.
    """

    tokens: Tensor
    highest: Tensor
    logprobs: Tensor | None
    top: tuple[Tensor, Tensor] | None


def pick(
    logits: Tensor, options: StepOptions, uniforms: Sequence[float] | Tensor, penalised: Tensor | None = None
) -> Picked:
    """Choose one token for each row, greedily or by `uniforms` (see `choose`), without waiting for a device.

    With `penalised`, tokens are chosen by these logits, and reported by the others.
    """
    tokens, highest = most_likely(logits)
    if options.temperature:
        tokens = choose(logits if penalised is None else penalised, options, uniforms)
    elif penalised is not None:
        tokens = most_likely(penalised)[0]
    logprobs = None
    if options.token_logprobs:
        logprobs = logits.gather(1, tokens[:, None])[:, 0].double() - logits.double().logsumexp(dim=-1)
    top = most_likely_tokens(logits, options.top_logprobs) if options.top_logprobs else None
    return Picked(tokens, highest, logprobs, top)


def penalise(logits: Tensor, texts: Sequence[Sequence[int]], penalty: float) -> Tensor:
    """Return logits in which the tokens of a row's text are less likely (Keskar et al. 2019, section 4.1).

    A positive logit is divided by the penalty and a negative one multiplied, as in transformers.

    Args:
        logits: [R, V], float32 or float64.
        texts: for each row the tokens of prompt and text.
        penalty: above 0; below 1 makes them more likely.
    """
    found = logits.clone()
    for row, text in zip(found, texts, strict=True):
        held = torch.tensor(sorted(set(text)), dtype=torch.int64, device=logits.device)
        values = row[held]
        row[held] = torch.where(values < 0, values * penalty, values / penalty)
    return found


def top_rows(tokens: Tensor, logprobs: Tensor) -> list[list[tuple[int, float]]]:
    """Return what `most_likely_tokens` returned as pairs of token and log-probability, row by row."""
    return [list(zip(*row, strict=True)) for row in zip(tokens.tolist(), logprobs.tolist(), strict=True)]


def choose(logits: Tensor, sampling: Sampling, uniforms: Sequence[float] | Tensor) -> Tensor:
    """Choose one token for each row.

    Args:
        logits: [R, V], float32 or float64, finite.
        sampling: temperature, top-k and top-p.
        uniforms: R numbers in [0, 1), or float64 [R] on the device of the logits; row r takes the token whose share of
            the distribution contains the r-th.

    Returns:
        int64 [R]
    """
    if sampling.temperature == 0:
        return most_likely(logits)[0]
    # Relative to the largest, and by a number the type can hold, so that a tiny temperature leaves 0 and -inf.
    lowered = logits - logits.amax(dim=-1, keepdim=True)
    scaled = lowered.div_(max(sampling.temperature, torch.finfo(logits.dtype).tiny))
    tokens, weights = _kept(scaled, sampling)
    if not isinstance(uniforms, Tensor):
        uniforms = torch.tensor(uniforms, dtype=torch.float64, device=logits.device)
    chosen = invert(weights, uniforms)
    return chosen if tokens is None else tokens.gather(1, chosen[:, None])[:, 0]


def invert(weights: Tensor, uniforms: Tensor) -> Tensor:
    """Invert the distribution function: the first index whose running sum exceeds the uniform's share of the total.

    Args:
        weights: [R, N], non-negative, not all 0; they need not sum to 1.
        uniforms: float64 [R] in [0, 1).

    Returns:
        int64 [R]; never an index of weight 0.
    """
    rows, count = weights.shape
    blocks = -(-count // _BLOCK)
    if blocks * _BLOCK > count:
        weights = torch.nn.functional.pad(weights, (0, blocks * _BLOCK - count))
    padded = weights.view(rows, blocks, _BLOCK)
    running = padded.sum(-1, dtype=torch.float64).cumsum(-1)  # [R, blocks]
    share = uniforms * running[:, -1]
    block = (running <= share[:, None]).sum(-1).clamp_(max=blocks - 1)
    row = torch.arange(rows, device=weights.device)
    inside = padded[row, block].double()  # [R, _BLOCK]
    before = running[row, block] - inside.sum(-1)
    place = ((before[:, None] + inside.cumsum(-1)) <= share[:, None]).sum(-1)
    # If rounding carries the share past the block's own sum, take its last token of any weight.
    last = _BLOCK - 1 - (inside.flip(-1) > 0).int().argmax(-1)
    return block * _BLOCK + torch.minimum(place, last)


def _kept(scaled: Tensor, sampling: Sampling) -> tuple[Tensor | None, Tensor]:
    """Return the token of each weight [R, N] (None for the whole vocabulary in order) and the weights [R, N].

    The largest of `scaled` is 0 in each row; the weights may take its place.
    """
    vocabulary = scaled.shape[-1]
    everything = sampling.top_k is None or sampling.top_k >= vocabulary
    top_p = 1.0 if sampling.top_p is None else sampling.top_p
    if everything and top_p == 1:
        return None, scaled.exp_()
    if not everything:
        assert sampling.top_k is not None
        values, tokens = scaled.topk(sampling.top_k, dim=-1)
        total = values.double().logsumexp(dim=-1)
    else:
        values, tokens, total = _most_likely(scaled, top_p)
    weights = torch.exp(values.double() - total[:, None])
    if top_p < 1:
        before = weights.cumsum(-1) - weights
        weights = weights.masked_fill(before >= top_p, 0.0)
    tokens, order = tokens.sort(dim=-1)  # so that a token's place does not depend on the order of near ties
    return tokens, weights.gather(-1, order)


def _most_likely(scaled: Tensor, top_p: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return enough of each row's most likely tokens to reach `top_p`: logits, ids, and the log-sum-exp of all."""
    vocabulary = scaled.shape[-1]
    total = scaled.double().logsumexp(dim=-1)
    # Checking whether they suffice would wait for a GPU, so all are sorted there.
    count = vocabulary if triton_support.on_gpu(scaled.device) else min(_BLOCK, vocabulary)
    while True:
        values, tokens = scaled.topk(count, dim=-1)
        if count == vocabulary or bool((torch.exp(values.double() - total[:, None]).sum(-1) >= top_p).all()):
            return values, tokens, total
        count = min(8 * count, vocabulary)
