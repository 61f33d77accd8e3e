"""Compare methods and readers on the same questions: a `Study`, which `run_study` runs."""

from fastreader.study.config import EorConfig, MethodConfig, NoiseConfig, Study
from fastreader.study.dry_run import DryCost, dry_run
from fastreader.study.folder import RunFolder
from fastreader.study.run import Finished, run_study

__all__ = [
    "DryCost",
    "EorConfig",
    "Finished",
    "MethodConfig",
    "NoiseConfig",
    "RunFolder",
    "Study",
    "dry_run",
    "run_study",
]
