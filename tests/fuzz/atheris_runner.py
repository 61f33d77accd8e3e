"""Run a harness under atheris: python tests/fuzz/atheris_NAME.py -runs=N -seed=S."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

Target = Callable[[bytes], None]


def run(modules: Sequence[str], make: Callable[[], Target]) -> None:
    """Fuzz the function that `make` returns, guided by the branches of the modules that it imports."""
    import atheris

    with atheris.instrument_imports(include=list(modules)):
        target = make()
    atheris.Setup(sys.argv, target)
    atheris.Fuzz()
