"""Random calls of decode_attention, and their results in float64."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from fastreader.ops.decode_attention import Ranges, decode_attention


def random(rng: np.random.Generator, *shape: int) -> Tensor:
    return torch.from_numpy(rng.standard_normal(shape, dtype=np.float32))


def random_ranges(rng: np.random.Generator, rows: int, lengths: list[int]) -> Ranges:
    """Return up to three ranges of a row in each part, at positions that rise, some empty or reversed."""
    listed, pointer = [], [0]
    for _ in range(rows):
        position = 0
        for part, length in enumerate(lengths):
            cuts = np.sort(rng.integers(0, length + 1, 2 * int(rng.integers(0, 4)))).reshape(-1, 2)
            for start, stop in cuts.tolist():
                listed.append((part, start, stop - 2 * int(rng.random() < 0.1), position))
                position += max(stop - start, 0) + int(rng.integers(0, 3))
        pointer.append(len(listed))
    columns = np.array(listed, dtype=np.int32).reshape(-1, 4).T.copy()
    return Ranges(np.array(pointer, dtype=np.int32), *columns)


def operands(rng: np.random.Generator, dtype: torch.dtype) -> tuple[Tensor, list[Tensor], list[Tensor], Ranges]:
    key_heads, groups, rows = int(rng.integers(1, 4)), int(rng.integers(1, 6)), int(rng.integers(1, 6))
    size, value_size = (8 * int(rng.integers(1, 13)) for _ in range(2))
    lengths = rng.integers(0, 200, int(rng.integers(1, 3))).tolist()
    query = random(rng, rows, key_heads * groups, size).to(dtype)
    keys = [random(rng, n, key_heads, size).to(dtype) for n in lengths]
    values = [random(rng, n, key_heads, value_size).to(dtype) for n in lengths]
    return query, keys, values, random_ranges(rng, rows, lengths)


def options_of(rng: np.random.Generator, query: Tensor) -> dict[str, object]:
    rows, heads, size = query.shape
    options: dict[str, object] = {"scale": float(rng.choice([size**-0.5, -0.2, 0.0], p=[0.8, 0.1, 0.1]))}
    if rng.random() < 0.3:
        options["softcap"] = 2.5
    if rng.random() < 0.3:
        options["sinks"] = random(rng, heads)
    if rng.random() < 0.3:
        options["slopes"] = random(rng, heads) * 0.01  # over 400 positions; scores of 50 have errors of 3e-6 in float32
    if rng.random() < 0.7:
        options["positions"] = torch.from_numpy(rng.integers(-1, 400, rows).astype(np.int32))
        kind = rng.choice(["all", "window", "chunk"])
        if kind != "all":
            options[str(kind)] = int(rng.integers(1, 100))
    return options


def close(got: tuple[Tensor, Tensor], want: tuple[Tensor, Tensor], tolerance: float = 2e-6) -> None:
    assert got[0].dtype == got[1].dtype == torch.float32
    torch.testing.assert_close(got[0].double(), want[0], atol=tolerance, rtol=tolerance)
    torch.testing.assert_close(got[1].double(), want[1], atol=tolerance, rtol=tolerance)


def golden(query: Tensor, keys: list[Tensor], values: list[Tensor], ranges: Ranges, options: dict) -> tuple:
    wide = {k: v.double() if isinstance(v, Tensor) and v.is_floating_point() else v for k, v in options.items()}
    doubled = query.double(), [k.double() for k in keys], [v.double() for v in values]
    return decode_attention(*doubled, ranges, **wide, impl="reference")
