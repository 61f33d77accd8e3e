"""A Content-Security-Policy for the page: only its own script and styles run, and nothing is loaded from anywhere.

Texts of a run are escaped already. The policy is a second wall: should one ever come through as markup, the browser
neither runs it nor sends what the page shows to another host.
"""

from __future__ import annotations

import base64
import hashlib
import re

PLACE = "the policy is set when the page is whole"
"""Text in the page's template that `with_policy` replaces."""

_STYLE = re.compile(r"<style[^>]*>(.*?)</style>", re.DOTALL)
_SCRIPT = re.compile(r"<script>(.*?)</script>", re.DOTALL)  # data, of type application/json, is not run


class StyleClasses:
    """Turns `style` attributes, which a strict policy forbids, into classes of one style sheet.

    Attributes:
        rules: the class of each distinct style.
    """

    def __init__(self) -> None:
        self.rules: dict[str, str] = {}

    def replace(self, svg: str) -> str:
        """Return an element whose tags have classes for their styles."""
        return re.sub(r' style="([^"]*)"', lambda found: f' class="{self._name(found[1])}"', svg)

    def sheet(self) -> str:
        """Return the style sheet of all classes so far."""
        return "\n".join(f".{name} {{ {style} }}" for style, name in self.rules.items())

    def _name(self, style: str) -> str:
        return self.rules.setdefault(style, f"s{len(self.rules)}")


def with_policy(page: str) -> str:
    """Return a page with the policy that allows exactly the scripts and style sheets that it has now."""
    scripts, styles = _hashes(_SCRIPT.findall(page)), _hashes(_STYLE.findall(page))
    policy = (
        f"default-src 'none'; script-src {scripts}; style-src {styles}; img-src data:; base-uri 'none'; "
        "form-action 'none'"
    )
    return page.replace(PLACE, policy, 1)


def _hashes(texts: list[str]) -> str:
    """Return the hashes of distinct texts as sources of a policy."""
    digests = (hashlib.sha256(text.encode()).digest() for text in dict.fromkeys(texts))
    return " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests) or "'none'"
