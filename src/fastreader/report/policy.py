"""A Content-Security-Policy for the page: only its own script and styles run, and nothing is loaded from anywhere.

Texts of a run are escaped already. The policy is a second wall: should one ever come through as markup, the browser
neither runs it nor sends what the page shows to another host.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Sequence

PLACE = "the policy is set when the page is whole"
"""Text in the page's template that `with_policy` replaces."""

_TAG = re.compile(r"<[A-Za-z][^<>]*>")  # no comment, in which matplotlib repeats texts
_FIGURE_STYLE = re.compile(r'<defs>\s*<style type="text/css">([^<]*)</style>')
_ATTRIBUTE = re.compile(r' style="([^"{}]*)"')


class StyleClasses:
    """Turns `style` attributes, which a strict policy forbids, into classes of one style sheet.

    Attributes:
        rules: the class of each distinct style.
    """

    def __init__(self) -> None:
        self.rules: dict[str, str] = {}

    def replace(self, svg: str) -> str:
        """Return an element whose tags have classes for their styles."""
        return _TAG.sub(lambda tag: _ATTRIBUTE.sub(lambda found: f' class="{self._name(found[1])}"', tag[0]), svg)

    def sheet(self) -> str:
        """Return the style sheet of all classes so far."""
        return "\n".join(f".{name} {{ {style} }}" for style, name in self.rules.items())

    def _name(self, style: str) -> str:
        return self.rules.setdefault(style, f"s{len(self.rules)}")


def own_styles(svg: str) -> list[str]:
    """Return the style sheet with which matplotlib begins a figure, or none."""
    found = _FIGURE_STYLE.search(svg)
    return [found[1]] if found else []


def with_policy(page: str, scripts: Sequence[str] = (), styles: Sequence[str] = ()) -> str:
    """Return a page with the policy that allows its own scripts and style sheets.

    Args:
        page: contains `PLACE`.
        scripts, styles: contents of the elements that the page was made with, character by character. What else the
            page has is not allowed.
    """
    policy = (
        f"default-src 'none'; script-src {_hashes(scripts)}; style-src {_hashes(styles)}; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    return page.replace(PLACE, policy, 1)


def _hashes(texts: Sequence[str]) -> str:
    """Return the hashes of distinct texts as sources of a policy."""
    digests = (hashlib.sha256(text.encode()).digest() for text in dict.fromkeys(texts))
    return " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests) or "'none'"
