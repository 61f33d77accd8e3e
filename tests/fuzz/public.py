"""The public callables of the package, found through `__all__`."""

from __future__ import annotations

import dataclasses
import enum
import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterator
from typing import Any

from pydantic import BaseModel

import fastreader
from fastreader.data.record import SavedRecord
from fastreader.reader.session import Session

# Parts with separate tests for their arguments: the command line, kernels, model loading, pages.
ELSEWHERE = ("cli", "integrations", "models", "ops", "report", "_C", "__main__")
INTERNAL = ("moi.solve",)  # mathematics behind `moi`, without a public face
REBUILD = SavedRecord.from_dict.__func__  # one function, which checks the annotations of each class


def modules() -> Iterator[Any]:
    """Yield the modules that name their public members."""
    yield fastreader
    for found in pkgutil.walk_packages(fastreader.__path__, "fastreader."):
        inner = found.name.removeprefix("fastreader.")
        if not inner.startswith((*ELSEWHERE, *INTERNAL)) and "__main__" not in inner and "._C" not in inner:
            module = importlib.import_module(found.name)
            if hasattr(module, "__all__"):
                yield module


def members() -> Iterator[tuple[str, Any]]:
    """Yield each public function or class once, by the first name under which it is exported."""
    seen = set()
    yield "Session", Session
    for module in modules():
        for name in sorted(module.__all__):
            value = getattr(module, name)
            is_code = inspect.isclass(value) or inspect.isroutine(value) or hasattr(value, "__wrapped__")
            if is_code and getattr(value, "__module__", "").startswith("fastreader") and id(value) not in seen:
                seen.add(id(value))
                yield f"{module.__name__}.{name}".removeprefix("fastreader."), value


def callables() -> dict[str, Callable[..., Any]]:
    """Return public callables by name: functions, constructors and methods.

    Left out are exceptions, enumerations, interfaces, records that hold what they are given, what takes no argument,
    coroutines, which hand theirs on to the function of that name, and what a data model inherits from pydantic.
    """
    found: dict[str, Callable[..., Any]] = {}
    seen: set[Any] = set()
    for name, value in members():
        if not inspect.isclass(value):
            found[name] = value
            continue
        if issubclass(value, (BaseException, enum.Enum)) or getattr(value, "_is_protocol", False):
            continue
        if not inspect.isabstract(value) and not issubclass(value, BaseModel) and not _accepts_anything(value):
            found[name] = value
        for method in dir(value):
            member = inspect.getattr_static(value, method)
            own = getattr(member, "__func__", member)
            public = not method.startswith("_") and inspect.isfunction(own)
            known = (own, value) if own is REBUILD else own
            if public and own.__module__.startswith("fastreader") and known not in seen:
                if inspect.isabstract(value):
                    continue
                seen.add(known)
                found[f"{name}.{method}"] = getattr(value, method)
    return {n: call for n, call in found.items() if parameters(call) and not inspect.iscoroutinefunction(call)}


def parameters(call: Callable[..., Any]) -> dict[str, Any]:
    """Return the kinds of a callable's parameters by name, without `self` and `**options`."""
    found = inspect.signature(call).parameters.values()
    return {p.name: p.kind for p in found if p.name != "self" and p.kind is not p.VAR_KEYWORD}


def _accepts_anything(cls: type) -> bool:
    """Return whether a class is a plain record, such as a result, which holds what it is given and checks nothing."""
    unchecked = dataclasses.is_dataclass(cls) and not hasattr(cls.__init__, "__wrapped__")
    return (unchecked and not hasattr(cls, "__post_init__")) or issubclass(cls, (tuple, list))
