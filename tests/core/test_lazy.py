"""Attributes computed on first use: once for all threads, and not held up by a thread that a fork left behind."""

from __future__ import annotations

import functools
import os
import threading
from dataclasses import dataclass
from pathlib import Path

import pytest

import fastreader
from fastreader.core.lazy import cached_property


@dataclass(frozen=True)
class Slow:
    entered: threading.Event
    leaving: threading.Event

    @cached_property
    def found(self) -> list[int]:
        """Found late."""
        self.entered.set()
        self.leaving.wait(30)
        return [1]


def started() -> tuple[Slow, threading.Thread]:
    """An instance whose attribute another thread is computing."""
    slow = Slow(threading.Event(), threading.Event())
    thread = threading.Thread(target=lambda: slow.found)
    thread.start()
    assert slow.entered.wait(30)
    return slow, thread


def free() -> Slow:
    done = threading.Event()
    done.set()
    return Slow(threading.Event(), done)


def test_threads_at_once_have_one_value():
    slow, thread = started()
    others: list[list[int]] = []
    reading = [threading.Thread(target=lambda: others.append(slow.found)) for _ in range(3)]
    for each in reading:
        each.start()
    slow.leaving.set()
    for each in [thread, *reading]:
        each.join()
    assert all(found is slow.found for found in others)
    assert Slow.found.__doc__ == "Found late."


def test_another_instance_need_not_wait():
    slow, thread = started()
    assert free().found == [1]
    slow.leaving.set()
    thread.join()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_child_forked_during_a_first_use_does_not_wait_for_it():
    slow, thread = started()
    child = os.fork()
    if not child:
        got: list[list[int]] = []
        reader = threading.Thread(target=lambda: got.append(free().found), daemon=True)
        reader.start()
        reader.join(10)
        os._exit(0 if got == [[1]] else 1)
    assert os.waitpid(child, 0)[1] == 0
    slow.leaving.set()
    thread.join()


def test_the_package_uses_no_other():
    assert not hasattr(cached_property, "lock") and cached_property is not functools.cached_property
    for path in Path(fastreader.__file__).parent.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        if path.name != "lazy.py":
            assert "functools.cached_property" not in text and "functools import cached_property" not in text, path
