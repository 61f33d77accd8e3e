"""The page at `/`: one file with its own script and style, which calls `/v1/read`."""

from __future__ import annotations

import base64
import hashlib
from functools import lru_cache
from html import escape
from importlib.resources import files


@lru_cache(maxsize=4)
def page(model: str, pool: str = "") -> tuple[str, str]:
    """Return the page and its Content-Security-Policy, which lets only its own script and style run.

    Args:
        model: the reader's name, as the page shows it.
        pool: what the server's pool knows of the reader, as the page shows it; empty shows nothing.
    """
    assets = files("fastreader.integrations.serve").joinpath("assets")
    style, script = (assets.joinpath(name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    text = assets.joinpath("page.html").read_text(encoding="utf-8")
    text = text.replace("{{ pool }}", f'<p class="facts" id="pool">{escape(pool)}</p>\n' if pool else "")
    text = text.replace("{{ model }}", escape(model)).replace("{{ style }}", style).replace("{{ script }}", script)
    policy = (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; connect-src 'self'; img-src data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return text, policy


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
