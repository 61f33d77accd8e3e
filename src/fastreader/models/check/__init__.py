"""The check at load: the packed pass against the model's own modules, layer by layer."""

from fastreader.models.check.probe import Checked, check
from fastreader.models.check.verdicts import keep_verdict, known_verdict, verdict_path

__all__ = ["Checked", "check", "keep_verdict", "known_verdict", "verdict_path"]
