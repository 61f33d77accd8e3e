"""Argument checks: accepted values, rejected values, and the wording of the error."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from fastreader.core import checks
from fastreader.errors import InputError


def test_expect_names_argument_expectation_and_value():
    checks.expect(True, "k", "three", 4)
    with pytest.raises(InputError, match=r"^k: expected three, got 4$"):
        checks.expect(False, "k", "three", 4)


def test_located_puts_the_place_first():
    with pytest.raises(InputError, match=r"^file, line 3: k: expected three, got 4$"), checks.located("file, line 3"):
        checks.expect(False, "k", "three", 4)
    with pytest.raises(KeyError), checks.located("file"):
        raise KeyError


def test_given_returns_what_is_not_none():
    assert checks.given(0, "unused") == 0
    with pytest.raises(InputError, match=r"^gold: no passage is marked$"):
        checks.given(None, "gold: no passage is marked")


def test_rejecting_gives_the_reason():
    number = r"^n: expected a number, got 'x' \(could not convert string to float: 'x'\)$"
    with pytest.raises(InputError, match=number), checks.rejecting("n: expected a number, got 'x'", ValueError):
        float("x")
    absent = r"^a: cannot be read \(No such file or directory\)$"
    with pytest.raises(InputError, match=absent), checks.rejecting("a: cannot be read", TypeError, OSError):
        Path("/nonexistent/file").read_text()
    with pytest.raises(InputError, match=r"^a: too large$"), checks.rejecting("a: too large", MemoryError):
        raise MemoryError
    with pytest.raises(KeyError), checks.rejecting("a: cannot be read", OSError):
        raise KeyError


def test_shown_is_one_short_line():
    assert checks.shown("a") == "'a'"
    assert checks.shown(np.zeros((2, 3))) == "float64 [2, 3]"
    assert checks.shown("x" * 200) == "'" + "x" * 79 + "..."
    assert checks.shown({"k": np.eye(2)}).count("\n") == 0


ACCEPTED = [
    (checks.check_int, 1, {}),
    (checks.check_int, np.int32(7), {}),
    (checks.check_int, None, {"optional": True}),
    (checks.check_int, 0, {"minimum": 0, "maximum": 0}),
    (checks.check_int, 3, {"json_value": True}),
    (checks.check_number, 0.5, {"above": 0, "below": 1}),
    (checks.check_number, np.float32(1), {"minimum": 1, "maximum": 1}),
    (checks.check_number, None, {"optional": True}),
    (checks.check_number, -3, {"json_value": True}),
    (checks.check_seed, 0, {}),
    (checks.check_text, "a", {}),
    (checks.check_text, " ", {"empty": True}),
    (checks.check_text, None, {"optional": True}),
    (checks.check_choice, "a", {"choices": ["a", "b"]}),
    (checks.check_list, ("a",), {}),
    (checks.check_list, iter("ab"), {}),
    (checks.check_texts, ["a", "b"], {}),
    (checks.check_texts, [""], {"empty": True}),
    (checks.check_tokens, [1, 2], {}),
    (checks.check_tokens, np.arange(3), {}),
    (checks.check_tokens, [], {}),
    (checks.check_keys, {"a": 1}, {"known": ["a", "b"]}),
    (checks.check_json, {"a": [1, None]}, {}),
]

REJECTED = [
    (checks.check_int, 0, {}, "an integer of at least 1, got 0"),
    (checks.check_int, True, {}, "an integer of at least 1, got True"),
    (checks.check_int, 2.0, {}, "an integer of at least 1, got 2.0"),
    (checks.check_int, "2", {"optional": True}, "an integer of at least 1 or None, got '2'"),
    (checks.check_int, 9, {"minimum": 2, "maximum": 8}, "an integer from 2 to 8, got 9"),
    (checks.check_int, np.int64(3), {"json_value": True}, "an integer of at least 1, got np.int64(3)"),
    (checks.check_number, math.nan, {}, "a finite number, got nan"),
    (checks.check_number, math.inf, {"above": 0}, "a finite number above 0, got inf"),
    (checks.check_number, True, {}, "a finite number, got True"),
    (checks.check_number, 0, {"above": 0, "maximum": 1}, "a finite number above 0 and at most 1, got 0"),
    (checks.check_number, 1.5, {"minimum": 0, "below": 1.5}, "a finite number of at least 0 and below 1.5, got 1.5"),
    (checks.check_number, "x", {"optional": True}, "a finite number or None, got 'x'"),
    (checks.check_number, np.float32(1), {"json_value": True}, "a finite number, got np.float32(1.0)"),
    (checks.check_seed, -1, {}, "an integer of at least 0, got -1"),
    (checks.check_text, " ", {}, "text that is not empty, got ' '"),
    (checks.check_text, 3, {"empty": True}, "text, got 3"),
    (checks.check_text, 3, {"optional": True}, "text that is not empty or None, got 3"),
    (checks.check_choice, "c", {"choices": ["a", "b"]}, "one of a, b, got 'c'"),
    (checks.check_choice, ["a"], {"choices": ["a"]}, "one of a, got ['a']"),
    (checks.check_list, "ab", {"of": "texts"}, "a list of texts, got 'ab'"),
    (checks.check_list, None, {}, "a list, got None"),
    (checks.check_list, {1}, {}, "a list, got {1}"),
    (checks.check_list, {1: 2}, {}, "a list, got {1: 2}"),
    (checks.check_list, np.array(1), {}, "a list, got int64 []"),
    (checks.check_number, 10**400, {}, "a finite number, got 1000"),
    (checks.check_seed, 2**63, {}, "at most 9223372036854775807, got 9223372036854775808"),
    (checks.check_texts, "ab", {}, "a list of texts, got 'ab'"),
    (checks.check_tokens, "ab", {}, "text or token ids, got 'ab'"),
    (checks.check_tokens, [1.0], {}, "text or token ids, got [1.0]"),
    (checks.check_tokens, [[1], [2, 3]], {}, "text or token ids, got [[1], [2, 3]]"),
    (checks.check_tokens, [[1]], {}, "text or token ids, got [[1]]"),
    (checks.check_tokens, np.array([2**63], dtype=np.uint64), {}, "text or token ids, got uint64 [1]"),
    (checks.check_keys, {"a": 1, "c": 2}, {"known": ["a", "b"]}, "no keys besides a, b, got 'c'"),
    (checks.check_keys, {"c": 2}, {"known": []}, "no keys besides none, got 'c'"),
    (checks.check_json, {"a": math.nan}, {}, "JSON values, got {'a': nan}"),
    (checks.check_json, {1}, {}, "JSON values, got {1}"),
]


@pytest.mark.parametrize(("check", "value", "options"), ACCEPTED)
def test_accepted(check, value, options):
    assert check("name", value, **options) is None


@pytest.mark.parametrize(("check", "value", "options", "expected"), REJECTED)
def test_rejected(check, value, options, expected):
    with pytest.raises(InputError) as raised:
        check("name", value, **options)
    assert str(raised.value).startswith(f"name: expected {expected}")


def test_the_item_of_a_list_is_named():
    with pytest.raises(InputError, match=r"^names\[1\]: expected text that is not empty, got ''$"):
        checks.check_texts("names", ["a", ""])


def test_a_bound_of_thousands_of_digits_is_formatted_only_on_failure():
    checks.check_int("count", 5, 1, math.factorial(2000))


def test_random_generator():
    assert checks.random_generator(3).random() == np.random.default_rng(3).random()
    with pytest.raises(InputError, match="seed: expected an integer of at least 0, got None"):
        checks.random_generator(None)


def test_a_file_is_written_into_a_folder_that_exists(tmp_path):
    checks.check_output("path", tmp_path / "a.json")
    for path in (tmp_path, tmp_path / "missing" / "a.json"):
        with pytest.raises(InputError, match=r"^path: expected a file"):
            checks.check_output("path", path)
