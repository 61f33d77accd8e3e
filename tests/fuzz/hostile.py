"""Values that no parameter expects, and some that a few do: what callers pass by mistake, and what breaks a check.

Infinite iterators and lists of a billion items are left out: their cost is the caller's own, as is an exception that a
caller's function raises.
"""

from __future__ import annotations

import decimal
import fractions
import math
from pathlib import Path

import numpy as np
import torch

from fastreader import Example, Passage


class NoRepr:
    """An object whose repr raises, as one of a half-constructed object does."""

    def __repr__(self) -> str:
        raise RuntimeError("no repr")


class Odd:
    """An object that has every attribute, each None, so that duck typing finds what it looks for."""

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)


def nested(depth: int) -> list:
    """A list in a list in a list: deeper than Python's recursion goes."""
    outer: list = []
    for _ in range(depth):
        outer = [outer]
    return outer


def recursive() -> list:
    """A list that holds itself."""
    found: list = []
    found.append(found)
    return found


def values() -> list:
    """Fresh values, because a call may consume an iterator or change a list."""
    numbers = [
        0,
        1,
        -1,
        2,
        7,
        2**31,
        -(2**31),
        2**63,
        -(2**63) - 1,
        10**400,
        -(10**400),
        0.0,
        -0.0,
        0.5,
        -0.5,
        1.5,
        1e308,
        5e-324,
        math.nan,
        math.inf,
        -math.inf,
        1j,
        decimal.Decimal("0.5"),
        fractions.Fraction(1, 3),
    ]
    scalars = [
        np.int8(3),
        np.uint64(2**64 - 1),
        np.int64(-5),
        np.float16(0.5),
        np.float32(math.nan),
        np.float64(math.inf),
        np.bool_(True),
        np.str_("x"),
        np.datetime64("2020-01-01"),
        np.complex64(1),
        torch.tensor(1.0),
    ]
    texts = [
        "",
        " ",
        "\n",
        "x",
        "cyclic",
        "1",
        "-1",
        "nan",
        "None",
        "\0",
        "a\0b",
        "\ud800",
        "é\u202e",
        "{question}",
        "{",
        "%s",
        "<|end|>",
        "x" * 20_000,
        "../x",
        "a:b:c",
        "random:999999999999",
        b"",
        b"x",
        bytearray(b"x"),
        Path("nowhere"),
    ]
    lists = [
        [],
        [None],
        [[]],
        [1],
        [1.5],
        [-1],
        [2**70],
        [True],
        [math.nan],
        ["x"],
        [""],
        ["x", None],
        ["x", 1],
        [[1], [2, 3]],
        [[1, 2], [2, 1]],
        [["x"]],
        [{}],
        [Passage("x")],
        [Example("q", [])],
        (),
        (1,),
        ("x", "y"),
        ("x", "y", "z"),
        range(3),
        nested(2_000),
        recursive(),
        ["\ud800"],
        [object()],
        [b"x"],
        ["x"] * 300,
        [0, 1, 2],
    ]
    unordered = [
        set(),
        {"x"},
        {1},
        frozenset({"x"}),
        {},
        {"x": 1},
        {1: 2},
        {"x": None},
        {"x": {"x": [1]}},
        {None: None},
        {"question": "q"},
        {"x": 1}.keys(),
        {"x": 1}.values(),
        {"x": "y"}.items(),
        {"x": ["y"]},
        {"\ud800": 1},
    ]
    iterators = [iter([]), iter([1]), iter(["x"]), (None for _ in range(2)), (Passage("x") for _ in range(2))]
    arrays = [
        np.zeros(0),
        np.zeros(3),
        np.ones((2, 2)),
        np.array(1),
        np.array([math.nan]),
        np.array([True]),
        np.array(["x"]),
        np.array([None]),
        np.zeros((1, 2, 3), dtype=np.int64),
        np.array([[0, 1], [1, 0]]),
        np.array([2**63], np.uint64),
        np.zeros(2, dtype=complex),
        torch.tensor([1, 2]),
        torch.zeros(2, 2),
    ]
    others = [
        None,
        True,
        False,
        ...,
        NotImplemented,
        object(),
        NoRepr(),
        Odd(),
        math,
        Passage("x"),
        Example("q", [Passage("x")]),
        lambda *_, **__: None,
        lambda *_, **__: math.nan,
        ValueError("x"),
        slice(3),
    ]
    return [*numbers, *scalars, *texts, *lists, *unordered, *iterators, *arrays, *others]
