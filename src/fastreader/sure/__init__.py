"""SuRe: answers by candidates, a summary of the passages for each, and a vote over the summaries (Kim et al. 2024).

`answer` answers one question, `answer_many` a file of questions, and `ask` uses the paper's other methods by name
(`variants.METHODS`). The names load on first use; importing this package imports no torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastreader.core.lazy import lazy_names

if TYPE_CHECKING:
    from fastreader.sure import variants
    from fastreader.sure.pipeline import answer, answer_many, ask
    from fastreader.sure.replies import CandidateReply, parse_candidates
    from fastreader.sure.settings import Settings
    from fastreader.sure.templates import SureTemplate, VariantTemplate
    from fastreader.sure.types import MethodResult, SureResult

_HOME = {
    "CandidateReply": "replies",
    "MethodResult": "types",
    "Settings": "settings",
    "SureResult": "types",
    "SureTemplate": "templates",
    "VariantTemplate": "templates",
    "answer": "pipeline",
    "answer_many": "pipeline",
    "ask": "pipeline",
    "parse_candidates": "replies",
    "variants": "",
}

__all__ = [
    "CandidateReply",
    "MethodResult",
    "Settings",
    "SureResult",
    "SureTemplate",
    "VariantTemplate",
    "answer",
    "answer_many",
    "ask",
    "parse_candidates",
    "variants",
]


__getattr__, __dir__ = lazy_names(__name__, _HOME)
