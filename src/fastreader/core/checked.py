"""checked: compare the arguments of a public function or class with its own type hints.

The hints are the declaration: what the documentation of a parameter shows is what its check accepts::

    @checked
    def place(gold: Passage, others: Sequence[Passage], position: str) -> list[Passage]: ...

    place(gold, {one, two}, "far")  # InputError: others: expected a list of Passage objects, got {...}

Hints are read as Python callers expect:

- `int` and `float` accept NumPy's numbers and no bool; `bool` accepts NumPy's bool and no number.
- `list`, `tuple[X, ...]` and `Sequence` accept every sized container with an order: lists, tuples, arrays, series.
- `Iterable` also accepts an iterator, whose items are checked when they are consumed.
- No list may be a text, a set, a mapping, a view of one or a data frame, because a set has no order, a text yields its
  letters and a data frame its columns.
- A path (`str | os.PathLike`) is one that a file system can hold.
- `npt.ArrayLike` and `npt.NDArray[X]` accept numbers in lists or arrays; lists become arrays for `npt.NDArray[X]`.

Bounds and relations between arguments are checked by `fastreader.core.checks`. NumPy's integers become
Python's, and arrays become lists unless they hold integers. No other value is converted, defaults
are not checked, and hints are evaluated at the first call.

Why not a library? Measured on a function of 10 parameters with 10 passages and 4 candidates (CPython 3.11), a warm call
costs 13 us here, 15 us with pydantic 2.14's `validate_call` and 4.5 us with beartype 0.23. beartype checks one item of
a list, accepts a text as `Sequence[str]` and True as `int`, and rejects NumPy's numbers. pydantic, strict, also rejects
NumPy's integers and arrays, takes a text for `Iterable[str]`, and names positional arguments by number ("2.400: Input
should be ..."). Both raise errors in their own words, and a machine that only runs models need not have either.
"""

from __future__ import annotations

import ast
import collections.abc as abc
import dataclasses
import functools
import importlib
import inspect
import os
import sys
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, repeat
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from fastreader.core.checks import NOT_LISTS, UNORDERED, expect, fits_float, rejecting, shown
from fastreader.errors import InputError

_LONGEST_NAME = 240  # bytes; file systems allow 255, and temporary files add some
Target = TypeVar("Target")
Inside = Callable[[str, Any], Any]


class _List(abc.Sized, abc.Iterable[Any]):
    """The type of containers with a size and an order, whatever their base class."""

    @classmethod
    def __subclasshook__(cls, other: type) -> bool:
        return all(hasattr(other, name) for name in ("__len__", "__getitem__", "__iter__"))


_INTEGER_TYPES = (int, np.integer)
_NUMBER_TYPES = (int, float, np.integer, np.floating)
_BOOL_TYPES = (bool, np.bool_)
_SEQUENCES = {list, tuple, abc.Sequence, abc.MutableSequence}
_ITERABLES = {abc.Iterable, abc.Iterator, abc.Collection, abc.Generator}
_MAPPINGS = {dict, abc.Mapping, abc.MutableMapping}
_SETS = {set, frozenset, abc.Set}
_PLAIN_LISTS = frozenset({list, tuple})
_ARRAY_LIKE = frozenset(typing.get_args(npt.ArrayLike))
_NUMPY_KINDS = (("b", np.bool_, "bools"), ("iu", np.integer, "integers"), ("iuf", np.floating, "numbers"))


@dataclass(frozen=True)
class HintKind:
    """What a hint accepts.

    Attributes:
        words: the expected value, for messages.
        plural: several such values.
        whole: exact types of which every value is accepted without a further look.
        types: types that are accepted.
        barred: types of those that are not.
        inside: looks into an accepted value; raises InputError, or returns the value to pass on.
        options: the alternatives of a union; empty otherwise.
        known: exact types among `types`, found many times quicker than by isinstance with an abstract class.
    """

    words: str
    plural: str
    whole: frozenset[type] = frozenset()
    types: Any = ()
    barred: Any = ()
    inside: Inside | None = None
    options: tuple[HintKind, ...] = ()
    known: frozenset[type] = frozenset()


@dataclass(frozen=True)
class Accepts:
    """The wider type that a parameter accepts, as ``Annotated[list[Passage], Accepts(list[Passage | str])]``.

    Attributes:
        hint: the wider hint.
    """

    hint: Any


def checked(target: Target) -> Target:
    """Check arguments against type hints: of a function, or of the constructor and public methods of a class."""
    if not inspect.isclass(target):
        return _with_checks(target, "")  # type: ignore[arg-type, return-value]
    return _class_with_checks(target, f"{target.__name__}.")


def checked_options(target: Target) -> Target:
    """Check a class as `checked` does, but name arguments without the class, for which a function takes them."""
    return _class_with_checks(target, "")


def checked_methods(target: Target) -> Target:
    """Check the arguments of a class's public methods only: of results, which the package itself constructs."""
    for name, member in list(vars(target).items()):
        if name.startswith("_"):
            continue
        if isinstance(member, (classmethod, staticmethod)):
            setattr(target, name, type(member)(_with_checks(member.__func__, "")))
        elif inspect.isfunction(member):
            setattr(target, name, _with_checks(member, ""))
    return target


def _class_with_checks(target: Target, at: str) -> Target:
    if "__init__" in vars(target):
        owners = inspect.getmro(target)  # type: ignore[arg-type]
        target.__init__ = _with_checks(target.__init__, at, owners)  # type: ignore[misc]
    return checked_methods(target)


def accept(name: str, value: Any, kind: HintKind) -> Any:
    """Return `value` if it is of that kind, and an iterator as one that checks its items.

    Raises:
        InputError: naming `name` and what was expected.
    """
    if type(value) in kind.whole:
        return value
    found: InputError | None = None
    for option in kind.options or (kind,):
        if type(value) in option.known or (isinstance(value, option.types) and not isinstance(value, option.barred)):
            try:
                return value if option.inside is None else option.inside(name, value)
            except InputError as error:
                found = found or error
    if found is None:
        expect(False, name, kind.words, value)
    raise found  # type: ignore[misc]  # expect() has raised otherwise


def _with_checks(function: Callable[..., Any], at: str, owners: Sequence[type] = ()) -> Callable[..., Any]:
    """Return the function with its arguments checked, `at` before their names in messages.

    A hint is read in the module of the first of `owners` that has such a field, or in the function's.
    """
    parameters = inspect.signature(function).parameters.values()
    compiled: tuple[dict[str, HintKind], list[tuple[str, HintKind]], tuple[str, HintKind]] | None = None

    def compile_hints() -> tuple[dict[str, HintKind], list[tuple[str, HintKind]], tuple[str, HintKind]]:
        by_name: dict[str, HintKind] = {}
        by_place: list[tuple[str, HintKind]] = []
        others = (at, _ANYTHING)
        for parameter in parameters:
            kind = _ANYTHING
            if parameter.annotation is not parameter.empty and parameter.kind is not parameter.VAR_KEYWORD:
                owner = next((each for each in owners if parameter.name in inspect.get_annotations(each)), function)
                kind = kind_of(_evaluated(parameter.annotation, owner.__module__))
            named = (at + parameter.name, kind)
            if parameter.kind is parameter.VAR_POSITIONAL:
                others = named
            elif parameter.kind is not parameter.KEYWORD_ONLY:
                by_place.append(named)
            by_name.setdefault(parameter.name, kind)
        return by_name, by_place, others

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        nonlocal compiled
        if compiled is None:  # in threads at once each computes the same; a lock would be held in a forked child
            compiled = compile_hints()
        by_name, by_place, others = compiled
        passed = list(args)
        for place, (value, (name, kind)) in enumerate(zip(args, chain(by_place, repeat(others)), strict=False)):
            if kind is not _ANYTHING and type(value) not in kind.whole:
                passed[place] = accept(name, value, kind)
        for name, value in kwargs.items():
            kind = by_name.get(name, _ANYTHING)
            if kind is not _ANYTHING and type(value) not in kind.whole:
                kwargs[name] = accept(at + name, value, kind)
        return function(*passed, **kwargs)

    return wrapper


def _evaluated(annotation: Any, module: str) -> Any:
    """Return the hint of an annotation, importing names under TYPE_CHECKING now."""
    if not isinstance(annotation, str):
        return annotation
    names = vars(sys.modules[module])
    try:
        return eval(annotation, names)  # nosec B307  # the text of a hint in the package's own source
    except NameError:
        return eval(annotation, names, _late_names(module))  # nosec B307


@functools.cache
def _late_names(module: str) -> dict[str, Any]:
    """Return what a module imports only for type checkers."""
    found = {}
    for node in ast.parse(inspect.getsource(sys.modules[module])).body:
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            for line in node.body:
                if isinstance(line, ast.ImportFrom) and line.module:
                    source = importlib.import_module(line.module)
                    found.update({name.asname or name.name: getattr(source, name.name) for name in line.names})
    return found


def kind_of(hint: Any) -> HintKind:
    """Return what a hint accepts, for `accept`."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        wider = next((each.hint for each in arguments[1:] if isinstance(each, Accepts)), arguments[0])
        return kind_of(wider)
    if origin in (typing.Union, types.UnionType):
        if set(arguments) >= _ARRAY_LIKE:
            # A union with ArrayLike lists the alternatives of both. ArrayLike has text among them, so that here texts
            # and the insides of lists are left to the function, and only ArrayLike by itself means numbers.
            others = [each for each in arguments if each not in _ARRAY_LIKE]
            if others:
                return _joined([*map(kind_of, others), _PLAIN[str], dataclasses.replace(_ARRAY, inside=None)])
            return _ARRAY
        return _union(arguments)
    if hint is Any:
        return _ANYTHING
    if hint in _PLAIN:
        return _PLAIN[hint]
    if isinstance(hint, str):  # inside another hint
        return _ANYTHING
    base = origin or hint
    if origin is typing.Literal:
        words = f"one of {', '.join(map(str, arguments))}"
        return HintKind(words, words, types=object, inside=functools.partial(_one_of, words, arguments))
    if base is np.ndarray:
        return _array(arguments)
    if base in _SEQUENCES | _ITERABLES | _SETS:
        return _listed(base, arguments)
    if base in _MAPPINGS:
        return _mapping(arguments)
    if base is abc.Callable:
        return HintKind("a function", "functions", types=abc.Callable)
    if inspect.isclass(base) and base is not object:
        article = "an" if base.__name__[0] in "AEIO" else "a"
        whole = frozenset() if getattr(base, "_is_protocol", False) else frozenset({base})
        loads = f" ({base.__name__}.load reads one)" if hasattr(base, "load") else ""
        return HintKind(f"{article} {base.__name__}{loads}", f"{base.__name__} objects", whole, base)
    return _ANYTHING  # a type variable


def _union(arguments: tuple[Any, ...]) -> HintKind:
    """Return the alternatives, one level deep, with None last."""
    rest = [hint for hint in arguments if hint not in (str, type(None))]
    if str in arguments and any((typing.get_origin(hint) or hint) is os.PathLike for hint in rest):
        rest = [hint for hint in rest if (typing.get_origin(hint) or hint) is not os.PathLike]
        kinds = [_PATH, *map(kind_of, rest)]
    else:
        kinds = [kind_of(hint) for hint in arguments if hint is not type(None)]
    if type(None) in arguments:
        kinds.append(_PLAIN[type(None)])
    return _joined(kinds)


def _joined(kinds: list[HintKind]) -> HintKind:
    if _ANYTHING in kinds:
        return _ANYTHING
    options = tuple(chain.from_iterable(kind.options or (kind,) for kind in kinds))
    words = " or ".join(dict.fromkeys(kind.words for kind in kinds))
    plural = " or ".join(dict.fromkeys(kind.plural for kind in kinds))
    return HintKind(words, plural, frozenset().union(*(kind.whole for kind in options)), options=options)


def _listed(base: Any, arguments: tuple[Any, ...]) -> HintKind:
    """Return a list, an iterable or a set of items of one kind, or a tuple of fixed length."""
    if base is tuple and arguments and arguments[-1] is not Ellipsis:
        kinds = tuple(map(kind_of, arguments))
        words = f"{len(kinds)} values ({', '.join(kind.words for kind in kinds)})"
        fixed = functools.partial(_each_of, words, kinds)
        return HintKind(words, f"groups of {words}", known=_PLAIN_LISTS, types=_List, barred=NOT_LISTS, inside=fixed)
    item = kind_of(arguments[0]) if arguments else _ANYTHING
    of = "" if item is _ANYTHING else f" of {item.plural}"
    inside = functools.partial(_items, item)
    if base in _SETS:
        return HintKind(f"a set{of}", f"sets{of}", types=abc.Set, inside=inside)
    wanted = abc.Iterable if base in _ITERABLES else _List
    return HintKind(f"a list{of}", f"lists{of}", known=_PLAIN_LISTS, types=wanted, barred=NOT_LISTS, inside=inside)


def _mapping(arguments: tuple[Any, ...]) -> HintKind:
    key, value = map(kind_of, arguments or (Any, Any))
    of = "" if value is _ANYTHING else f" of {value.plural}"
    inside = functools.partial(_entries, key, value)
    return HintKind(f"a dictionary{of}", f"dictionaries{of}", types=abc.Mapping, inside=inside)


def _array(arguments: tuple[Any, ...]) -> HintKind:
    """Return an array of the kind of numbers that `npt.NDArray[X]` names."""
    scalar = typing.get_args(arguments[-1])[0] if arguments else np.generic
    for letters, base, plural in _NUMPY_KINDS:
        if inspect.isclass(scalar) and issubclass(scalar, base):
            words = f"an array of {plural}"
            inside = functools.partial(_as_array, words, letters)
            return HintKind(words, f"arrays of {plural}", types=_List, barred=UNORDERED, inside=inside)
    return HintKind("an array", "arrays", types=np.ndarray, inside=functools.partial(_items, _ANYTHING))


def _items(kind: HintKind, name: str, value: Any) -> Any:
    """Check the items of a list now, and an iterator's items when they are consumed."""
    items = value
    if type(value) not in _PLAIN_LISTS:
        expect(getattr(value, "ndim", 1) != 0, name, f"a list of {kind.plural}", value)  # an array of one number
        if isinstance(value, np.ndarray) and value.ndim == 1 and kind is _PLAIN[int] and value.dtype.kind in "iu":
            return value
        if kind is not _ANYTHING and (isinstance(value, abc.Iterator) or not hasattr(value, "__len__")):
            return _items_as_consumed(kind, name, value)
        items = value if kind is _ANYTHING or isinstance(value, (list, tuple)) else list(value)
    if kind is _ANYTHING:
        return value
    if not set(map(type, items)) <= kind.whole:
        found, same = [], True
        for index, item in enumerate(items):
            found.append(accept(f"{name}[{index}]", item, kind))
            same &= found[-1] is item
        if not same:
            return found
    return items if isinstance(value, np.ndarray) else value  # the truth of an array is not that of a list


def _items_as_consumed(kind: HintKind, name: str, values: Iterable[Any]) -> Iterator[Any]:
    for index, item in enumerate(values):
        yield accept(f"{name}[{index}]", item, kind)


def _each_of(words: str, kinds: tuple[HintKind, ...], name: str, value: Any) -> Any:
    expect(getattr(value, "ndim", 1) != 0 and len(value) == len(kinds), name, words, value)
    for index, (item, kind) in enumerate(zip(value, kinds, strict=True)):
        accept(f"{name}[{index}]", item, kind)
    return value


def _entries(key_kind: HintKind, value_kind: HintKind, name: str, values: Any) -> Any:
    for key, value in values.items():
        if type(key) not in key_kind.whole:
            accept(f"{name}: key", key, key_kind)
        if value_kind is not _ANYTHING and type(value) not in value_kind.whole:
            accept(f"{name}[{shown(key)}]", value, value_kind)
    return values


def _one_of(words: str, choices: tuple[Any, ...], name: str, value: Any) -> Any:
    expect(any(type(value) is type(choice) and value == choice for choice in choices), name, words, value)
    return value


def _path(name: str, value: Any) -> Any:
    """Check that a file system can hold a path: it is not empty, and its names are encodable and not too long."""
    with rejecting(f"{name}: expected a path, got {shown(value)}", TypeError, UnicodeEncodeError):
        names = os.fsencode(value).split(os.fsencode(os.sep))
    usable = any(names) and all(b"\0" not in part and len(part) <= _LONGEST_NAME for part in names)
    expect(usable or names == [b"", b""], name, f"a path of names of at most {_LONGEST_NAME} bytes", value)
    return value


def _integer(name: str, value: Any) -> int:
    """Return Python's integer, which does not overflow in the function's arithmetic as NumPy's do."""
    return int(value)


def _float(name: str, value: Any) -> Any:
    expect(fits_float(value), name, "a number that a float can hold", value)
    return value


def _numbers(words: str, letters: str, name: str, value: Any) -> Any:
    """Check that a value is an array of numbers, which ragged lists are not."""
    wanted = f"{name}: expected {words}, got {type(value).__name__}"
    with rejecting(wanted, TypeError, ValueError, OverflowError, RuntimeError):
        found = np.asarray(value)
    expect(found.dtype.kind in letters or not found.size, name, words, value)
    return value


def _as_array(words: str, letters: str, name: str, value: Any) -> Any:
    """Return an array as it is, and lists of numbers as an array."""
    _numbers(words, letters, name, value)
    return value if isinstance(value, np.ndarray) else np.asarray(value, np.float64 if "f" in letters else None)


_NUMPY_FLOATS = frozenset(t for t in np.sctypeDict.values() if issubclass(t, np.floating))
_ANYTHING = HintKind("a value", "values", types=object)
_PATH = HintKind("a path", "paths", types=(str, os.PathLike), inside=_path)
_ARRAY = HintKind(
    "numbers in a list or an array",
    "lists or arrays of numbers",
    types=(_List, *_NUMBER_TYPES),
    barred=(*UNORDERED, bool),
    inside=functools.partial(_numbers, "numbers in a list or an array", "iuf"),
)
_PLAIN: dict[Any, HintKind] = {
    int: HintKind("an integer", "integers", frozenset({int}), _INTEGER_TYPES, _BOOL_TYPES, inside=_integer),
    float: HintKind(
        "a number", "numbers", frozenset({float}) | _NUMPY_FLOATS, _NUMBER_TYPES, _BOOL_TYPES, inside=_float
    ),
    bool: HintKind("True or False", "bools", frozenset(_BOOL_TYPES), _BOOL_TYPES),
    str: HintKind("text", "texts", frozenset({str}), str),
    bytes: HintKind("bytes", "bytes", frozenset({bytes}), bytes),
    type(None): HintKind("None", "Nones", frozenset({type(None)}), type(None)),
    None: HintKind("None", "Nones", frozenset({type(None)}), type(None)),
    os.PathLike: _PATH,
}
