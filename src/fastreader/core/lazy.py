"""Names of a package that load on first use, so that importing the package imports none of its modules."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any


def lazy_names(package: str, homes: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return the `__getattr__` and `__dir__` of a package (PEP 562).

    Args:
        package: ``__name__`` of the package.
        homes: for each name the module that defines it, relative to the package; "" if the name is itself a module.

    Example:
        >>> __getattr__, __dir__ = lazy_names("fastreader", {"Reader": "reader.reader", "moi": ""})
    """

    def get(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        if not homes[name]:
            return importlib.import_module(f"{package}.{name}")
        found = getattr(importlib.import_module(f"{package}.{homes[name]}"), name)
        setattr(sys.modules[package], name, found)  # the next use does not come here
        return found

    return get, lambda: sorted(homes)
