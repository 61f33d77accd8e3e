"""Items that run together, and the ones that fail by themselves."""

import pytest

from fastreader.core.halving import by_halves
from fastreader.errors import InputError, NumericsError


class Doubling:
    """Doubles numbers, raises for a call that holds a bad one, and counts calls."""

    def __init__(self, *bad):
        self.bad, self.sizes = set(bad), []

    def __call__(self, items):
        self.sizes.append(len(items))
        for item in items:
            if item in self.bad:
                raise InputError(f"bad: {item}")
        return [2 * item for item in items]


def results(count, run):
    return [str(x) if isinstance(x, InputError) else x for x in by_halves(range(count), run, InputError)]


def test_one_call_if_nothing_fails():
    run = Doubling()
    assert results(1000, run) == list(range(0, 2000, 2))
    assert run.sizes == [1000]


@pytest.mark.parametrize("bad", [0, 1, 499, 500, 999])
def test_one_bad_item_of_a_thousand_costs_twenty_one_calls(bad):
    run = Doubling(bad)
    expected = [2 * i for i in range(1000)]
    expected[bad] = f"bad: {bad}"
    assert results(1000, run) == expected
    assert len(run.sizes) <= 1 + 2 * 10  # 2^10 >= 1000


def test_every_item_may_fail():
    run = Doubling(*range(8))
    assert results(8, run) == [f"bad: {i}" for i in range(8)]
    assert len(run.sizes) == 15


def test_halves_run_as_they_are_consumed():
    run = Doubling(0)
    found = by_halves(range(8), run, InputError)
    assert str(next(found)) == "bad: 0"
    assert run.sizes == [8, 4, 2, 1]


def test_other_errors_are_raised_at_once():
    def run(items):
        raise NumericsError("not finite")

    with pytest.raises(NumericsError, match="not finite"):
        list(by_halves([1, 2], run, InputError))
