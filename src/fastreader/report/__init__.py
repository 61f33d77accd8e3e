"""Tables, plots and pages for people. `Report` makes one page, figures and tables of a study's run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fastreader.report.page import Report

__all__ = ["Report"]


def __getattr__(name: str) -> Any:
    if name == "Report":
        from fastreader.report.page import Report

        return Report
    raise AttributeError(f"module 'fastreader.report' has no attribute {name!r}")
