"""What is shown during work, on a terminal and elsewhere."""

import io
import sys

import pytest

from fastreader.core.progress import busy, note, track


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize("terminal", [True, False])
def test_work_is_shown_on_a_terminal_only(monkeypatch, terminal):
    stream = Terminal() if terminal else io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("TERM", "xterm")
    with busy("loading a model"):
        pass
    with track("scoring", 3, "questions", None) as advance:
        advance(3)
    shown = stream.getvalue()
    assert ("loading a model" in shown, "scoring" in shown) == (terminal, terminal)


def test_an_error_ends_the_spinner(monkeypatch):
    monkeypatch.setattr(sys, "stderr", Terminal())
    with pytest.raises(KeyboardInterrupt), busy("loading"):
        raise KeyboardInterrupt
    assert sys.stderr.getvalue().endswith("\x1b[?25h") or "\x1b[?25h" in sys.stderr.getvalue()  # the cursor is back


def test_what_is_done_is_shown_in_the_outermost_spinner(monkeypatch):
    note("nothing is shown for it")
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("TERM", "xterm")
    with busy("loading [a]"), busy("another"):
        note("reading weights, 40 %")
        print("on its own stream")
    shown = stream.getvalue()
    assert "loading [a]: reading weights, 40 %" in shown
    assert "another" not in shown and "own stream" not in shown
