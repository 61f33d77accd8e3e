"""Records: JSON values from fields, and back by annotation."""

from __future__ import annotations

import enum
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pytest

from fastreader.data.record import SavedRecord
from fastreader.errors import InputError


class Kind(enum.Enum):
    NEAR = "near"


@dataclass(frozen=True)
class Part:
    name: str
    weight: float = 1.0


@dataclass(frozen=True)
class Own(SavedRecord):
    """Its JSON is not its fields."""

    value: int

    def to_dict(self) -> dict[str, Any]:
        return {"twice": 2 * self.value}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Own:
        return cls(values["twice"] // 2)


@dataclass(frozen=True, eq=False)
class Whole(SavedRecord):
    names: list[str]
    scores: npt.NDArray[np.float64]
    ranks: npt.NDArray[np.int64]
    hits: npt.NDArray[np.bool_]
    parts: dict[str, Part]
    own: Own
    kind: Kind
    pair: tuple[int, float]
    flags: tuple[str, ...] = ()
    cut: dict[int, int] = field(default_factory=dict)
    lists: list[list[float | None]] | None = None
    free: Any = None
    condition: float | None = 1.0

    _shapes: ClassVar = {"names": "K", "scores": "M K", "ranks": "K", "hits": "M 2"}
    _nulls: ClassVar = {"scores": -np.inf}


def whole(**values: Any) -> Whole:
    given = {
        "names": ["a", "b", "c"],
        "scores": np.array([[0.1, -np.inf, 3.0]]),
        "ranks": np.array([2, 0, 1]),
        "hits": np.array([[True, False]]),
        "parts": {"x": Part("x", 0.5)},
        "own": Own(4),
        "kind": Kind.NEAR,
        "pair": (1, 2.5),
        "flags": ("f",),
        "cut": {3: 7},
        "lists": [[None, 1.0], []],
        "free": {"any": [1]},
        "condition": float("inf"),
    }
    return Whole(**{**given, **values})


VALUES = {
    "names": ["a", "b", "c"],
    "scores": [[0.1, None, 3.0]],
    "ranks": [2, 0, 1],
    "hits": [[True, False]],
    "parts": {"x": {"name": "x", "weight": 0.5}},
    "own": {"twice": 8},
    "kind": "near",
    "pair": [1, 2.5],
    "flags": ["f"],
    "cut": {"3": 7},
    "lists": [[None, 1.0], []],
    "free": {"any": [1]},
    "condition": None,
}


def test_values_are_plain_and_in_the_order_of_the_fields():
    assert json.dumps(whole().to_dict(), allow_nan=False) == json.dumps(VALUES)


def test_a_record_comes_back_with_its_types():
    back = Whole.from_dict(json.loads(json.dumps(whole().to_dict())) | {"unknown": 1})
    for name, value in vars(whole(condition=None)).items():
        found = getattr(back, name)
        assert type(found) is type(value), name
        if isinstance(value, np.ndarray):
            assert found.dtype == value.dtype and np.array_equal(found, value)
        else:
            assert found == value


@pytest.mark.parametrize("shape", [(0, 0), (2, 0)])
def test_empty_arrays_keep_their_dimensions(shape):
    empty = whole(names=[], scores=np.zeros(shape), ranks=np.zeros(0, np.int64), hits=np.zeros((shape[0], 2), bool))
    back = Whole.from_dict(empty.to_dict())
    assert (back.scores.shape, back.ranks.shape, back.hits.shape) == (shape, (0,), (shape[0], 2))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"names": "abc"}, r"names: expected a list, got 'abc'"),
        ({"names": ["a", 2, "c"]}, r"names\[1\]: expected text, got 2"),
        ({"scores": [[1.0, 2.0]]}, r"scores: expected shape \[M, 3\], got float64 \[1, 2\]"),
        ({"scores": [["x"] * 3]}, r"scores: expected an array of numbers, got \[\['x'"),
        ({"scores": [[1.0], [2.0, 3.0]]}, r"scores: expected an array of numbers, got list"),
        ({"ranks": [0.5, 1, 2]}, r"ranks: expected an array of integers, got \[0.5"),
        ({"parts": {"x": {"weight": 1}}}, r"parts\['x'\]: name missing in values with keys \['weight'\]"),
        ({"parts": [1]}, r"parts: expected a dictionary, got \[1\]"),
        ({"parts": {"x": 3}}, r"parts\['x'\]: expected a dictionary, got 3"),
        ({"kind": "far"}, r"'far' is not a valid Kind"),
        ({"pair": [1]}, r"pair: expected 2 values, got \[1\]"),
        ({"cut": {"three": 1}}, r"Whole.from_dict: ValueError.*'three'.*with keys"),
        ({"condition": "large"}, r"condition: expected a number, got 'large'"),
    ],
)
def test_what_does_not_fit_is_named(change, message):
    with pytest.raises(InputError, match=r"^Whole.from_dict: .*" + message.removeprefix("Whole.from_dict: ")):
        Whole.from_dict({**VALUES, **change})


def test_a_missing_key_is_named():
    with pytest.raises(InputError, match=r"^Whole.from_dict: ranks missing in values with keys \['condition', "):
        Whole.from_dict({key: value for key, value in VALUES.items() if key != "ranks"})


def test_files_name_what_is_wrong_with_them(tmp_path):
    path = tmp_path / "whole.json"
    whole().save(path)
    assert Whole.load(path).to_dict() == VALUES
    path.write_text(path.read_text().replace("0.5", '"half"'))
    with pytest.raises(InputError, match=r"whole.json: Whole.from_dict: parts\['x'\]: weight: expected a number, got"):
        Whole.load(path)
    with pytest.raises(InputError, match="path: expected a file, not a folder"):
        whole().save(tmp_path)
