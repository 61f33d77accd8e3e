"""Compare methods and readers on the same questions: a `Study`, which `run_study` runs."""

from fastreader.study.config import EorConfig, MethodConfig, NoiseConfig, Study
from fastreader.study.folder import RunFolder
from fastreader.study.run import Finished, run_study

__all__ = ["EorConfig", "Finished", "MethodConfig", "NoiseConfig", "RunFolder", "Study", "run_study"]
