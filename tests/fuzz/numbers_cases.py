"""Tiny readers and transformers, one sequence at a time in float32: what the numbers fuzz compares.

The tolerance follows from float32, whose unit roundoff is u = 2^-24. A sum of n products is off by at most n u of its
terms; a token's logit passes four such sums a layer (projections, attention, output, feed-forward) and that of the LM
head. Both sides round, in different orders, so that log-probabilities of order one differ by at most about
2 (4 layers + 1) n u, to first order. That is 1.5e-4 nats for three layers of at most 96 terms. In practice roundings
cancel and the worst difference found is a quarter of that; a wrong mask, scale or position moves a token by 1e-2.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from fuzzing import LONG
from helpers.families import COMMON, FAMILIES, LONGROPE, tiny
from helpers.support import byte_tokenizer
from hypothesis import strategies as st

from fastreader import Reader

VOCABULARY = 261
DEPTH = COMMON["intermediate_size"]  # terms of the longest sum
TOLERANCE = 2 * (4 * COMMON["num_hidden_layers"] + 1) * DEPTH * 2.0**-24  # nats a token
# Two experts whose router logits differ by less than their own rounding may change places with the order of a sum.
TIE = 1e-4

# Gemma multiplies its embeddings by the root of the hidden size: 40, since that of 64 is exact in any type.
WIDTHS = {"Gemma2, window, caps": {"hidden_size": 40}, "Gemma3, window": {"hidden_size": 40}}
LONGROPE_FAMILY = "Phi3, longrope"
QUICK = (
    *("Llama", "Qwen3", "Mistral, window", "Gemma2, window, caps", "Gemma3, window", "Mixtral", "GPT2"),
    LONGROPE_FAMILY,
)
TESTED = (*FAMILIES, LONGROPE_FAMILY) if LONG else QUICK

Request = tuple[list[int], list[int]]


@dataclass(frozen=True)
class Subject:
    """A tiny random model, and the reader made of it."""

    family: str
    model: Any
    reader: Reader

    def truth(self, tokens: Sequence[int]) -> torch.Tensor | None:
        """Return float64 log-probabilities of what follows each token, [n, V]. None if a router nearly ties."""
        margins: list[float] = []
        with torch.inference_mode(), _watched(self.model, margins):
            logits = self.model(input_ids=torch.tensor([list(tokens)]), use_cache=False).logits[0]
        return None if min(margins, default=1.0) < TIE else logits.double().log_softmax(-1)

    def scored(self, request: Request) -> np.ndarray | None:
        """Return each continuation token's log-probability, nats. None if a router nearly ties."""
        context, continuation = request
        after = self.truth([*context, *continuation][:-1])
        if after is None:
            return None
        picked = after[len(context) - 1 :].gather(1, torch.tensor(continuation)[:, None])
        return picked[:, 0].numpy()

    def check_text(self, prompt: Sequence[int], tokens: Sequence[int], end: Sequence[int], room: int) -> None:
        """Check that each token is transformers' likeliest, and that the text ends where it should."""
        assert len(tokens) <= room
        ended = len(tokens) < room
        by_step = self.family == LONGROPE_FAMILY  # its frequencies depend on the length so far
        whole = None if by_step else self.truth([*prompt, *tokens])
        for i in range(len(tokens) + ended):
            if by_step:
                after = self.truth([*prompt, *tokens[:i]])
                row = None if after is None else after[-1]
            else:
                row = None if whole is None else whole[len(prompt) - 1 + i]
            if row is None:
                return
            best = float(row.max())
            chosen = float(row[tokens[i]]) if i < len(tokens) else max(float(row[token]) for token in end)
            assert best - chosen <= 2 * TOLERANCE, f"token {i} is {best - chosen:.3g} nats below the likeliest"


@contextmanager
def _watched(model: Any, margins: list[float]) -> Iterator[None]:
    """Append the least margin between the last expert taken and the first left out, of each router's call."""
    count = getattr(model.config, "num_experts_per_tok", None)
    routers = [m for name, m in model.named_modules() if count and name.endswith(("mlp.gate", "block_sparse_moe.gate"))]

    def watch(module: Any, inputs: Any, outputs: Any) -> None:
        rows = torch.nn.functional.linear(inputs[0].reshape(-1, inputs[0].shape[-1]), module.weight)
        ordered = rows.sort(dim=-1, descending=True).values
        margins.append(float((ordered[:, count - 1] - ordered[:, count]).min()))

    hooks = [router.register_forward_hook(watch) for router in routers]
    assert bool(hooks) == bool(count), "a model with experts has a router to watch"
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


@cache
def subject(family: str) -> Subject:
    """Load one family's tiny reader, once a process."""
    if family == LONGROPE_FAMILY:
        model = tiny("Phi3", rope_parameters=LONGROPE, original_max_position_embeddings=24)
    else:
        model = tiny(family, **WIDTHS.get(family, {}))
    if family == "GPT2":
        torch.nn.init.normal_(model.transformer.wpe.weight, std=0.5)  # else positions hardly matter
    return Subject(family, model, Reader.load((model, byte_tokenizer()), device="cpu", precision="exact"))


@st.composite
def requests(draw: st.DrawFn) -> list[Request]:
    """Draw requests that branch off each other: shared beginnings, prefixes of others, duplicates, separate roots."""
    rng = np.random.default_rng(draw(st.integers(0, 2**31 - 1), label="tokens"))
    alphabet = draw(st.sampled_from([3, VOCABULARY]), label="alphabet")  # 3: many chance beginnings in common
    made: list[list[int]] = []
    out: list[Request] = []
    for _ in range(draw(st.integers(1, 6), label="requests")):
        before = made[draw(st.integers(0, len(made) - 1), label="of request")] if made else []
        kept = before[: draw(st.integers(0, len(before)), label="tokens shared")]
        more = draw(st.integers(0 if len(kept) > 1 else 2, 24), label="tokens of its own")
        text = [*kept, *rng.integers(0, alphabet, more).tolist()]
        scored = draw(st.integers(1, min(len(text) - 1, 6)), label="tokens scored")
        made.append(text)
        out.append((text[:-scored], text[-scored:]))
    return out
