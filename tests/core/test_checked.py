"""Arguments against type hints: what each hint accepts, and how a refused value is named."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
import pytest

from fastreader import Passage
from fastreader.core import checked as compiling
from fastreader.core.checked import Accepts, accept, checked, checked_methods, checked_options, kind_of
from fastreader.errors import InputError

TEXTS = Sequence[str]
ONE = [1.0]

ACCEPTED = [
    (int, [3, -(10**30)]),
    (float, [0.5, 1, np.float32(2), float("nan"), float("inf")]),
    (bool, [True, np.bool_(False)]),
    (str | None, ["", None, np.str_("x")]),
    (TEXTS, [["a"], ("a",), []]),
    (list[int], [[1], range(3), np.arange(3), np.zeros(0, np.int64)]),
    (tuple[int, str], [(1, "a"), [1, "a"]]),
    (Mapping[str, Sequence[int]], [{}, {"a": [1]}]),
    (Literal["a", "b"], ["a"]),
    (str | os.PathLike[str], ["x", "/", "a/b", "é"]),
    (npt.ArrayLike, [1, ONE, np.eye(2), [[1, 2], [3, 4]]]),
    (Callable[[int], int], [len]),
    (Any, [object()]),
    (Passage | str, ["a", Passage("a")]),
]

REFUSED = [
    (int, True, "x: expected an integer, got True"),
    (int, 1.0, "x: expected an integer, got 1.0"),
    (int, np.bool_(True), "x: expected an integer, got np.True_"),
    (float, False, "x: expected a number, got False"),
    (float, 10**400, "x: expected a number that a float can hold"),
    (float, "1", "x: expected a number, got '1'"),
    (bool, 1, "x: expected True or False, got 1"),
    (bool, -1, "x: expected True or False, got -1"),
    (str | None, 3, "x: expected text or None, got 3"),
    (TEXTS, "ab", "x: expected a list of texts, got 'ab'"),
    (TEXTS, {"a"}, "x: expected a list of texts, got {'a'}"),
    (TEXTS, {"a": 1}, "x: expected a list of texts, got {'a': 1}"),
    (TEXTS, {"a": 1}.keys(), "x: expected a list of texts, got dict_keys"),
    (TEXTS, {1: "a"}.values(), "x: expected a list of texts, got dict_values"),
    (TEXTS, iter(["a"]), "x: expected a list of texts, got <list_iterator"),
    (TEXTS, ["a", None], r"x\[1\]: expected text, got None"),
    (TEXTS, np.array("a"), "x: expected a list of texts"),
    (list[int], np.zeros(2), r"x\[0\]: expected an integer, got np.float64"),
    (tuple[int, str], (1,), r"x: expected 2 values \(an integer, text\), got \(1,\)"),
    (tuple[int, str], (1, 2), r"x\[1\]: expected text, got 2"),
    (Mapping[str, Sequence[int]], {1: [1]}, "x: key: expected text, got 1"),
    (Mapping[str, Sequence[int]], {"a": ["b"]}, r"x\['a'\]\[0\]: expected an integer, got 'b'"),
    (Literal["a", "b"], ["a"], "x: expected one of a, b"),
    (str | os.PathLike[str], "", "x: expected a path"),
    (str | os.PathLike[str], "a\0b", "x: expected a path"),
    (str | os.PathLike[str], "\ud800", "x: expected a path"),
    (str | os.PathLike[str], "a" * 300, "x: expected a path of names of at most 240 bytes"),
    (npt.ArrayLike, "1", "x: expected numbers in a list or an array, got '1'"),
    (npt.ArrayLike, [[1], [2, 3]], "x: expected numbers in a list or an array"),
    (npt.NDArray[np.float64], ["a"], "x: expected an array of numbers"),
    (Callable[[int], int], 3, "x: expected a function, got 3"),
    (Passage | str, 3, "x: expected a Passage or text, got 3"),
]


@pytest.mark.parametrize(("hint", "values"), ACCEPTED, ids=[str(hint) for hint, _ in ACCEPTED])
def test_accepted_values_pass_unchanged(hint, values):
    for value in values:
        assert accept("x", value, kind_of(hint)) is value


@pytest.mark.parametrize(("hint", "value", "message"), REFUSED)
def test_refused_values_are_named(hint, value, message):
    with pytest.raises(InputError, match=f"^{message}"):
        accept("x", value, kind_of(hint))


def test_items_of_an_iterator_are_checked_when_they_are_consumed():
    found = accept("x", iter(["a", 2]), kind_of(Iterable[str]))
    assert next(found) == "a"
    with pytest.raises(InputError, match=r"^x\[1\]: expected text, got 2$"):
        next(found)


def test_an_array_for_a_list_becomes_one_unless_it_holds_integers():
    assert accept("x", np.array(["a"]), kind_of(TEXTS)) == ["a"]
    assert accept("x", np.zeros(0), kind_of(Sequence[Passage])) == []
    tokens = np.arange(3)
    assert accept("x", tokens, kind_of(Sequence[int])) is tokens


def test_converted_items_make_a_new_list():
    given = [np.int8(3), 4]
    found = accept("x", given, kind_of(Sequence[int]))
    assert found == [3, 4] and found is not given and set(map(type, found)) == {int}
    assert isinstance(accept("x", [[1.0]], kind_of(Sequence[npt.NDArray[np.float64]]))[0], np.ndarray)


def test_a_parameter_may_accept_more_than_its_type():
    hint = Annotated[list[Passage], Accepts(list[Passage | str])]
    assert accept("x", ["a"], kind_of(hint)) == ["a"]
    with pytest.raises(InputError, match=r"^x\[0\]: expected a Passage or text, got 1"):
        accept("x", [1], kind_of(hint))


def test_integers_of_numpy_become_integers():
    found = accept("x", np.int8(3), kind_of(int | None))
    assert type(found) is int and found == 3


def test_lists_become_arrays_where_the_hint_says_array():
    found = accept("x", [1, 2], kind_of(npt.NDArray[np.float64]))
    assert found.dtype == np.float64 and found.tolist() == [1.0, 2.0]


@checked
def place(gold: str, *others: int, at: Sequence[str] = (), **options: Any) -> tuple[Any, ...]:
    """Return the arguments."""
    return gold, others, at, options


def test_a_function_is_checked_by_place_and_by_name():
    assert place("a", 1, 2, at=["b"], more=object)[:3] == ("a", (1, 2), ["b"])
    for call, message in (
        (lambda: place(1), "gold: expected text, got 1"),
        (lambda: place("a", 1, "b"), "others: expected an integer, got 'b'"),
        (lambda: place("a", at={"b"}), "at: expected a list of texts"),
    ):
        with pytest.raises(InputError, match=f"^{message}"):
            call()
    with pytest.raises(TypeError, match="missing 1 required positional argument"):
        place()


@dataclass
class Record:
    """A class to check."""

    count: int

    def add(self, number: int) -> int:
        """Return the sum."""
        return self.count + number

    @classmethod
    def of(cls, text: str) -> Record:
        """Return a record."""
        return cls(len(text))


def fresh() -> type[Record]:
    return dataclass(type("Record", (), {**vars(Record), "__module__": __name__}))


def test_classes():
    whole, methods, options = checked(fresh()), checked_methods(fresh()), checked_options(fresh())
    with pytest.raises(InputError, match=r"^Record\.count: expected an integer, got 'a'$"):
        whole("a")
    with pytest.raises(InputError, match=r"^count: expected an integer, got 'a'$"):
        options("a")
    assert methods("a").count == "a"
    for cls in (whole, methods, options):
        assert cls.of("ab").add(1) == 3
        with pytest.raises(InputError, match=r"^number: expected an integer, got True$"):
            cls(1).add(True)
        with pytest.raises(InputError, match=r"^text: expected text, got 1$"):
            cls.of(1)


def test_a_value_without_a_repr_is_shown_by_its_type():
    class Broken:
        def __repr__(self) -> str:
            raise ValueError

    with pytest.raises(InputError, match=r"^x: expected text, got a Broken without a repr"):
        accept("x", Broken(), kind_of(str))


@pytest.mark.parametrize("round", range(3))
def test_first_calls_in_threads_at_once_check_as_a_later_call(monkeypatch, round):
    """Hints are evaluated at the first call, which may import modules and so lets other threads run."""

    @checked
    def place(question: str, passages: TEXTS, /, *others: int, seed: int = 0) -> tuple[Any, ...]:
        return question, passages, others, seed

    evaluated = compiling._evaluated
    monkeypatch.setattr(compiling, "_evaluated", lambda *args: (time.sleep(0.002), evaluated(*args))[1])
    together = threading.Barrier(6)

    def call(_: int) -> Any:
        together.wait()
        return place("q", ["a"], 1, 2, seed=3)

    with ThreadPoolExecutor(6) as pool:
        assert list(pool.map(call, range(6))) == [("q", ["a"], (1, 2), 3)] * 6
    for wrong, name in [((["q"], ["a"]), "question"), (("q", "a"), "passages"), (("q", ["a"], "b"), "others")]:
        with pytest.raises(InputError, match=f"^{name}: "):
            place(*wrong)
    assert place("q", ["a"], 1, seed=2) == ("q", ["a"], (1,), 2)
