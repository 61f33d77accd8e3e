"""Bars of long work: after a second, moving within a pass, one at a time, and gone after an interruption."""

import io
import signal
import sys
import threading

import pytest

import fastreader as fr
from fastreader.core import progress
from fastreader.core.progress import STEPPED, in_steps, showing, track
from fastreader.reader import loglikelihood


class Terminal(io.StringIO):
    def isatty(self):
        return True


def on_a_terminal(monkeypatch):
    """Return what standard error gets. A fixture would not do, since pytest replaces its stream before the test."""
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("TERM", "xterm")
    return stream


DOCUMENTS = [f"Document {i} says that river {i % 7} is long." for i in range(1000)]


def test_a_bar_waits_and_then_shows(monkeypatch):
    terminal = on_a_terminal(monkeypatch)
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    with track("quick", 2, "steps", None, after=1.0) as advance:
        now[0] += 0.9
        advance(1)
    assert terminal.getvalue() == ""
    with track("long", 2, "steps", None, after=1.0) as advance:
        now[0] += 1.1
        advance(1)
    assert "long" in terminal.getvalue()
    with track("asked for", 2, "steps", True, after=1.0):
        pass
    assert "asked for" in terminal.getvalue()


def test_a_part_of_work_that_is_shown_has_no_bar_of_its_own(monkeypatch):
    terminal = on_a_terminal(monkeypatch)
    with track("whole", 2, "steps", None) as advance:
        with track("part", 2, "steps", True) as inner, showing(True), track("smaller", 2, "steps", True):
            inner(2)
        advance(2)
    with track("after", 1, "steps", None):
        pass
    shown = terminal.getvalue()
    assert "whole" in shown and "after" in shown and "part" not in shown and "smaller" not in shown


@pytest.mark.parametrize(("show", "given", "seen"), [(False, True, False), (None, False, True), (True, False, True)])
def test_work_around_decides(show, given, seen, monkeypatch):
    terminal = on_a_terminal(monkeypatch)
    with showing(show), track("within", 1, "steps", given):
        pass
    assert ("within" in terminal.getvalue()) == seen
    with track("without", 1, "steps", given):
        pass
    assert ("without" in terminal.getvalue()) == given


@pytest.mark.parametrize("calls", [0, 3, 4, 9])
def test_steps_of_one(calls):
    parts = []
    with in_steps(parts.append, 4):
        for _ in range(calls):
            STEPPED.get()()
        assert sum(parts) == min(calls, 4) / 4
    assert STEPPED.get() is None and sum(parts) == 1


@pytest.mark.parametrize("method", ["query_likelihood", "yes_no", "qg"])
@pytest.mark.long(keep=1)
def test_one_question_with_many_documents_shows_its_passes(tiny_reader, method, monkeypatch):
    terminal = on_a_terminal(monkeypatch)
    monkeypatch.setattr(loglikelihood, "SOON", 0.0)
    quiet = fr.rerank(tiny_reader, "Which river?", DOCUMENTS, method=method, progress=False)
    assert terminal.getvalue() == ""
    shown = fr.rerank(tiny_reader, "Which river?", DOCUMENTS, method=method)
    assert "scoring" in terminal.getvalue() and "passes" in terminal.getvalue()
    assert [(r.index, r.value) for r in shown] == [(r.index, r.value) for r in quiet]


def test_a_pass_moves_the_bar_layer_by_layer(tiny_reader, monkeypatch):
    moved = []
    original = loglikelihood.track

    def recorded(*arguments, **options):
        class Recorder:
            def __enter__(self):
                self.within = original(*arguments, **options)
                advance = self.within.__enter__()
                return lambda steps: (moved.append(steps), advance(steps))

            def __exit__(self, *error):
                return self.within.__exit__(*error)

        return Recorder()

    monkeypatch.setattr(loglikelihood, "track", recorded)
    fr.rerank(tiny_reader, "Which river?", DOCUMENTS[:50], max_batch_tokens=1500)
    layers = len(tiny_reader.local_model.model.windows)
    passes, rest = divmod(len(moved), layers + 1)
    assert passes > 1 and rest == 0
    assert moved == ([1 / layers] * layers + [0.0]) * passes


@pytest.mark.parametrize("where", [1, 2])
def test_an_interruption_leaves_nothing_half_made(tiny_reader, monkeypatch, where):
    """Ctrl-C in the given layer of the second pass: the bar is gone, and the next call is like one before."""
    terminal = on_a_terminal(monkeypatch)
    monkeypatch.setattr(loglikelihood, "SOON", 0.0)
    documents = DOCUMENTS[:60]
    whole = fr.rerank(tiny_reader, "Which river?", documents, max_batch_tokens=1500, progress=False)
    layers, calls, threads = len(tiny_reader.local_model.model.windows), 0, set(threading.enumerate())
    original = in_steps

    def interrupted(advance, count):
        def counting(steps):
            nonlocal calls
            calls += 1
            advance(steps)
            if calls == layers + 1 + where:
                signal.raise_signal(signal.SIGINT)

        return original(counting, count)

    monkeypatch.setattr(loglikelihood, "in_steps", interrupted)
    with tiny_reader.session(["Which river?"], cache_scored=True) as session:
        with pytest.raises(KeyboardInterrupt):
            fr.rerank(session, "Which river?", documents, max_batch_tokens=1500)
        assert "scoring" in terminal.getvalue()
        assert terminal.getvalue().rindex("\x1b[?25h") > terminal.getvalue().rindex("\x1b[?25l")  # the cursor is back
        for thread in set(threading.enumerate()) - threads:  # that redraws the bar
            thread.join(5)
            assert not thread.is_alive()
        assert not tiny_reader.local_model.lock.locked()
        monkeypatch.setattr(loglikelihood, "in_steps", original)
        for reader in (tiny_reader, session):
            again = fr.rerank(reader, "Which river?", documents, max_batch_tokens=1500, progress=False)
            assert again.indices == whole.indices
            assert [r.value for r in again] == pytest.approx([r.value for r in whole], abs=1e-5)
    with track("the next bar", 1, "steps", None):
        pass
    assert "the next bar" in terminal.getvalue()
