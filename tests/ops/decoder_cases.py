"""A small decoder layer and a stream of tokens, for the ops that contain one."""

from __future__ import annotations

import torch
from torch import Tensor

from fastreader.ops.decoder_layer import HeadNorms, Weight, decoder_layer_in, decoder_layer_out
from fastreader.ops.linear import prepare

HEADS, KEY_HEADS, SIZE, HIDDEN, INNER, EPSILON = 3, 1, 24, 40, 96, 1e-5
# Largest error against float64 as a share of the largest value; the operands' rounding makes up nearly all of it.
ALLOWED = {"bf16": 2e-2, "bf16x3": 1e-4, "float32": 1e-5, "int16": 5e-4}


class Case:
    """Weights of a small layer and a stream of tokens, with optional biases and norms of heads."""

    def __init__(
        self, rows: int, precision: str, *, biases: bool = False, norms: str = "none", seed: int | None = None
    ) -> None:
        self.generator = torch.Generator().manual_seed(rows if seed is None else seed)
        self.rows, self.precision = rows, precision
        self.stream = self.random(rows, HIDDEN)
        self.attended = self.random(rows, HEADS * SIZE)
        self.norm, self.second = self.random(HIDDEN), self.random(HIDDEN)
        angle = self.random(rows, SIZE // 2)
        self.angles = tuple(f(angle).repeat(1, 2) for f in (torch.cos, torch.sin))
        self.shapes = {
            "projections": ((HEADS + 2 * KEY_HEADS) * SIZE, HIDDEN),
            "out": (HIDDEN, HEADS * SIZE),
            "inner": (2 * INNER, HIDDEN),
            "down": (HIDDEN, INNER),
        }
        self.plain = {name: self.random(*shape).bfloat16() * 0.2 for name, shape in self.shapes.items()}
        self.biases = {name: self.random(shape[0]) if biases else None for name, shape in self.shapes.items()}
        self.weights = {n: Weight(prepare(w, precision), self.biases[n]) for n, w in self.plain.items()}
        count = {"none": None, "head": (1, 1), "flat": (HEADS, KEY_HEADS)}[norms]
        self.head_norms = count and HeadNorms(*(self.random(n * SIZE) for n in count), EPSILON)

    def random(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self.generator)

    def before(self) -> tuple[Tensor, Tensor, Tensor]:
        return decoder_layer_in(
            self.stream,
            self.norm,
            EPSILON,
            self.weights["projections"],
            heads=HEADS,
            key_heads=KEY_HEADS,
            head_norms=self.head_norms,
            angles=self.angles,
        )

    def after(self) -> Tensor:
        stream = self.stream.clone()
        out, inner, down = (self.weights[name] for name in ("out", "inner", "down"))
        rest = {"norm": self.second, "epsilon": EPSILON, "inner": inner, "activation": "silu", "down": down}
        decoder_layer_out(stream, self.attended, out, **rest)
        return stream
