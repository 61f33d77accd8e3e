"""Exceptions of fastreader, whose messages name what was expected and what came."""

import re


class FastreaderError(Exception):
    """Base class of all errors that fastreader raises on purpose."""


class InputError(FastreaderError, ValueError):
    """An argument or a file is invalid."""


class NotReloadableError(InputError, TypeError):
    """A reader cannot be pickled, because another process could not load it."""


class OutputChangedError(FastreaderError, OSError):
    """Something else deleted, moved or changed an output file during the run that writes it."""


class ContextOverflowError(InputError):
    """A prompt is longer than the model's context length."""


class OutOfBudgetError(FastreaderError, MemoryError):
    """A model or a single sequence needs more memory than is available, so that no partition can help."""


class NumericsError(FastreaderError, ArithmeticError):
    """A log-likelihood is infinite or NaN."""


class UnsupportedModelError(FastreaderError):
    """The model computes something that the packed pass does not, so its numbers would be wrong."""


class ModelNotFoundError(FastreaderError, FileNotFoundError):
    """No model has that name, folder or file."""


class ModelFileError(FastreaderError, ValueError):
    """A model file is damaged, truncated or differs from the pinned one."""


class UnsupportedImplementationError(FastreaderError):
    """The requested implementation cannot run here or with these inputs."""


class EngineError(FastreaderError, OSError):
    """A running engine cannot be reached, rejects a request, or answers without what was requested."""


class MissingExtraError(FastreaderError, ImportError):
    """An optional dependency is not installed. The message names what to install, and the extra that lists it."""

    def __init__(self, package: str, extra: str) -> None:
        needed = " ".join(f"'{requirement}'" for requirement in _requirements(extra)) or package
        super().__init__(
            f"{package} is not installed; install the extra {extra} of fastreader with: pip install {needed}"
        )


def _requirements(extra: str) -> list[str]:
    """Return what an extra installs, or nothing if fastreader runs from its source folder."""
    from importlib import metadata  # takes as long to import as fastreader itself

    try:
        requirements = metadata.requires("fastreader") or []
    except metadata.PackageNotFoundError:
        return []
    listed = (requirement.partition(";") for requirement in requirements)
    return [needed.strip() for needed, _, when in listed if re.search(rf"extra == ['\"]{re.escape(extra)}['\"]", when)]
