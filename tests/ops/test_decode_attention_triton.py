"""The Triton kernel of decode_attention in the interpreter, against float64."""

from __future__ import annotations

import os

import numpy as np
import pytest
import torch
from decode_cases import close, golden, operands, options_of, random

from fastreader.errors import UnsupportedImplementationError
from fastreader.ops.decode_attention import Ranges, decode_attention

pytestmark = pytest.mark.interpreter
CASES = int(os.environ.get("FASTREADER_DECODE_CASES", "12"))  # 500 have passed


REPEATED = {4, 7, 10}  # long ranges with options that others have too


@pytest.mark.parametrize("seed", [pytest.param(i, marks=[pytest.mark.fuzz] * (i in REPEATED)) for i in range(CASES)])
def test_random_ranges(seed: int) -> None:
    from fastreader.ops.decode_attention.triton import DecodeAttentionConfig, decode_attention_triton

    rng = np.random.default_rng(seed)
    dtype = (torch.float32, torch.bfloat16, torch.float16)[seed % 3]
    query, keys, values, ranges = operands(rng, dtype)
    options = options_of(rng, query)
    want = golden(query, keys, values, ranges, options)
    close(decode_attention(query, keys, values, ranges, **options, impl="triton"), want)
    tables = ranges.tensors(len(query), list(map(len, keys)))
    got = decode_attention_triton(
        *(query, keys, values, tables),
        longest=ranges.longest,
        **options,
        config=DecodeAttentionConfig(16, 4, 1),
        num_splits=int(rng.integers(2, 6)),
    )
    close(got, want)


def test_more_heads_than_a_program_packs() -> None:
    rng = np.random.default_rng(1)
    query, key, value = random(rng, 2, 71, 16), random(rng, 90, 1, 16), random(rng, 90, 1, 16)
    ranges = Ranges(*(np.array(a, dtype=np.int32) for a in ([0, 1, 2], [0, 0], [0, 5], [90, 40])))
    got = decode_attention(query, [key], [value], ranges, scale=0.25, impl="triton")
    close(got, golden(query, [key], [value], ranges, {"scale": 0.25}))


def test_the_next_token_changes_only_positions() -> None:
    """Ranges hold keys to come, which may be anything, and a finished row sees nothing."""
    rng = np.random.default_rng(2)
    query, prompt, new = random(rng, 3, 4, 16), random(rng, 50, 2, 16), random(rng, 3 * 8, 2, 16)
    arrays = [0, 2, 4, 6], [0, 1] * 3, [0, 0, 10, 8, 0, 16], [40, 8, 40, 16, 20, 24], [0, 40, 5, 35, 0, 20]
    ranges = Ranges(*(np.array(a, dtype=np.int32) for a in arrays))
    for step in range(8):
        positions = torch.tensor([40 + step, 35 + step, -1], dtype=torch.int32)
        unwritten = new.view(3, 8, 2, 16).clone()
        unwritten[:, step + 1 :] = float("nan")
        keys = [prompt, unwritten.flatten(0, 1)]
        out, lse = decode_attention(query, keys, keys, ranges, scale=0.25, positions=positions, impl="triton")
        shorter = [40, 1 + step, 40, 9 + step, 0, 16]  # the last row's ranges are empty
        seen = Ranges(*(np.array(a, dtype=np.int32) for a in (*arrays[:3], shorter)))
        close((out, lse), golden(query, keys, keys, seen, {"scale": 0.25}))
        assert not out[2].any() and lse[2].isneginf().all()


def test_what_it_does_not_take() -> None:
    key = torch.zeros(4, 1, 8)
    ranges = Ranges(*(np.array(a, dtype=np.int32) for a in ([0, 1], [0], [0], [4])))
    with pytest.raises(UnsupportedImplementationError, match="up to 2 parts of keys, got 3"):
        decode_attention(torch.zeros(1, 1, 8), [key] * 3, [key] * 3, ranges, scale=1.0, impl="triton")
    wide = torch.zeros(4, 1, 576)
    with pytest.raises(UnsupportedImplementationError, match="sizes up to 512"):
        decode_attention(torch.zeros(1, 1, 576), [wide], [wide], ranges, scale=1.0, impl="triton")
