"""The check at load: the packed pass against the model's own modules, layer by layer."""

from fastreader.models.check.probe import Checked, check
from fastreader.models.check.verdicts import (
    code_digest,
    is_from_transformers,
    keep_verdict,
    known_verdict,
    trials_path,
    verdict_path,
)

__all__ = [
    "Checked",
    "check",
    "code_digest",
    "is_from_transformers",
    "keep_verdict",
    "known_verdict",
    "trials_path",
    "verdict_path",
]
