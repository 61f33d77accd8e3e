"""Exceptions of fastreader; each message names what was expected and what came."""


class FastreaderError(Exception):
    """Base class of every error fastreader raises on purpose."""


class InputError(FastreaderError, ValueError):
    """An argument or a file is not what was expected."""


class ContextOverflowError(InputError):
    """A prompt is longer than the model's context length."""


class OutOfBudgetError(FastreaderError, MemoryError):
    """One sequence needs more memory than there is, so that no split can help."""


class NumericsError(FastreaderError, ArithmeticError):
    """A log-likelihood came out infinite or not a number."""


class UnsupportedModelError(FastreaderError):
    """The model computes something the packed pass does not; running it would give wrong numbers."""


class ModelNotFoundError(FastreaderError, FileNotFoundError):
    """No model of that name, folder or file is at hand."""


class ModelFileError(FastreaderError, ValueError):
    """A model file is damaged, cut short or not what was pinned."""


class UnsupportedImplementationError(FastreaderError):
    """The implementation asked for by name cannot run here or with these inputs."""


class MissingExtraError(FastreaderError, ImportError):
    """An optional dependency is not installed; the message names the extra that brings it."""

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(f"{package} is not installed; it comes with: pip install 'fastreader[{extra}]'")
