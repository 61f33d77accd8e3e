"""The report of a study's run: `Report` makes one page, and figures and tables as files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastreader.core.lazy import lazy_names

if TYPE_CHECKING:
    from fastreader.report.page import Report

__all__ = ["Report"]


__getattr__, __dir__ = lazy_names(__name__, {"Report": "page"})
