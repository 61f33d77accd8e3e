"""The command line: data on standard output, all else on standard error.

This module imports little, so that `main` also reports a process that cannot load NumPy or torch for lack of memory.
"""

from __future__ import annotations

import contextlib
import io
import sys
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, NoReturn

from fastreader.cli.stopping import Stopped, stop_on_signals
from fastreader.core.lazy import lazy_names
from fastreader.errors import FastreaderError

if TYPE_CHECKING:
    from fastreader.cli.commands import app

__all__ = ["app", "main"]

# What libraries say when memory is short; most of them raise other exceptions than MemoryError.
_NO_MEMORY = (
    "cannot allocate memory",
    "can't allocate memory",
    "can't start new thread",
    "failed to map segment",
    "out of memory",
    "unable to allocate",
)
_RESERVE = 16 << 20  # bytes of address space that are free again for reporting a lack of memory, and for leaving


def main() -> None:
    """Run the command line, and report an error in one line on standard error.

    That covers errors of fastreader, of the operating system and of memory; any other keeps its traceback. Typer
    itself ends a command with 1 when nobody reads its output any more.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):  # tables may hold what the encoding of a pipe cannot
        sys.stdout.reconfigure(errors="backslashreplace")
    reserve = [bytes(_RESERVE)]  # zeros that are never touched, so that they take no memory
    try:
        with stop_on_signals(), _warnings_in_a_line():
            from fastreader.cli import app

            app()
        return
    except Stopped as stop:
        _print(stop.sentence())
        sys.exit(stop.code)
    except FastreaderError as error:
        _fail(str(error), 2)
    except KeyboardInterrupt:
        sys.exit(130)
    except Exception as error:
        reserve.clear()
        if not _lacks_memory(error):
            if isinstance(error, OSError):
                _fail(str(error), 1)
            raise
        detail = str(error).splitlines()[0][:200] if str(error) else "no further detail"
        said = f"{type(error).__name__}: {detail}"
    # Here the error is gone, and with it all that its traceback held. Nothing is imported to print it nicely.
    _print_plainly(
        "error: not enough memory; results that are written already are kept. A smaller --max-batch-tokens or "
        f"--batch-size, a smaller model or a higher memory limit helps ({said})"
    )
    sys.exit(1)


@contextlib.contextmanager
def _warnings_in_a_line() -> Iterator[None]:
    """Write warnings for users without the place in the code that they come from."""
    before = warnings.formatwarning

    def written(message: Warning | str, category: type[Warning], *rest: object, **more: object) -> str:
        if issubclass(category, UserWarning):
            return f"warning: {message}\n"
        return before(message, category, *rest, **more)  # type: ignore[arg-type]

    warnings.formatwarning = written
    try:
        yield
    finally:
        warnings.formatwarning = before


def _lacks_memory(error: BaseException | None) -> bool:
    """Return whether the error, or one that it was raised from, is a lack of memory."""
    while error is not None:
        said = str(error).lower()
        if isinstance(error, MemoryError) or any(words in said for words in _NO_MEMORY):
            return True
        if isinstance(error, SystemError) and _memory_is_limited():  # native code that gives no reason
            return True
        error = error.__cause__ or error.__context__
    return False


def _memory_is_limited() -> bool:
    if sys.platform == "win32":
        return False
    import resource

    return resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY


def _fail(message: str, code: int) -> NoReturn:
    _print(message, "error: ")
    sys.exit(code)


def _print(message: str, lead: str = "") -> None:
    try:
        from fastreader.cli.screen import say
    except (ImportError, MemoryError):  # memory does not suffice to load rich
        _print_plainly(lead + message)
        return
    say(message, lead)


def _print_plainly(line: str) -> None:
    sys.stderr.write(line.encode("unicode_escape").decode("ascii") + "\n")


__getattr__, __dir__ = lazy_names(__name__, {"app": "commands"})
