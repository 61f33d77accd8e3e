"""Names of a package that load on first use, and attributes computed on first use."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from functools import cached_property as cached_property
else:

    class cached_property:
        """Compute an attribute on first use, as functools' does from Python 3.12 on: without a lock.

        Until 3.11 all instances share a lock, which a child forked during a first use would wait for.
        """

        def __init__(self, compute: Callable[[Any], Any]) -> None:
            self.compute = compute
            self.__doc__ = compute.__doc__

        def __set_name__(self, owner: type, name: str) -> None:
            self.name = name

        def __get__(self, instance: Any, owner: type | None = None) -> Any:
            if instance is None:
                return self
            return vars(instance).setdefault(self.name, self.compute(instance))  # threads at once keep one value


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
