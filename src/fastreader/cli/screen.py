"""Text for people, on a terminal or a pipe: control characters of data are shown escaped.

A passage, a question or an answer may hold escape sequences that move the cursor, rename the window or hide text, and
marks that turn the direction of writing. JSON and TREC output bypasses this module.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from typing import Any

from rich import text
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.style import Style

# C0 and C1 without tab and newline, line separators, marks and overrides of direction, and lone surrogates.
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def escaped(message: str) -> str:
    r"""Return the text with control characters as Python writes them, such as "\x1b", except tabs and newlines."""
    return _CONTROLS.sub(lambda found: found[0].encode("unicode_escape").decode("ascii"), message)


class Text(text.Text):
    """Rich's Text with its control characters escaped, so that a table is wide enough for them."""

    def __init__(self, text: str = "", style: str | Style = "", **options: Any) -> None:
        super().__init__(escaped(text), style, **options)

    def append(self, text: text.Text | str, style: str | Style | None = None) -> Text:
        """Append text, escaped."""
        super().append(escaped(text) if isinstance(text, str) else text, style)
        return self


class Screen(Console):
    """A console that escapes control characters in whatever it prints, except its own styles."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Return the segments of a renderable, escaped."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(escaped(segment.text), segment.style)


def say(message: str, lead: str = "") -> None:
    """Print a line on standard error, with its `lead` bold and red on a terminal."""
    line = Text(lead, "bold red").append(message, "default not bold") if lead else Text(message)
    Screen(stderr=True).print(line, soft_wrap=True, highlight=False)
    sys.stderr.flush()
