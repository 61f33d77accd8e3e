"""Follow one parameter through the calls that pass it on, and count the files it stays in.

    python tools/walk.py fastreader.reader.reader:Reader.load model

The walk reads the source and runs nothing. It enters the called function wherever the parameter, or a variable made of
it, is an argument, in the order of the source. A stop is a stay in one file, a return a stop in a file already left.
Each function is walked once for each of its parameters.
"""

from __future__ import annotations

import argparse
import ast
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

Definition = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass
class Module:
    """The names that a module defines or imports.

    Attributes:
        functions: by name; methods by "Class.method".
        imports: the dotted target of each imported name.
    """

    name: str
    functions: dict[str, Definition] = field(default_factory=dict)
    classes: dict[str, ast.ClassDef] = field(default_factory=dict)
    imports: dict[str, str] = field(default_factory=dict)


@cache
def parsed(file: Path) -> ast.Module:
    """Return the syntax tree of a file, parsed once."""
    return ast.parse(file.read_text(encoding="utf-8"))


@cache
def nodes(file: Path) -> tuple[ast.AST, ...]:
    """Return the nodes of a file's syntax tree, walked once."""
    return tuple(ast.walk(parsed(file)))


def read(file: Path, name: str) -> Module:
    """Return the functions, classes and imports of a file."""
    module = Module(name)
    tree = parsed(file)
    for node in nodes(file):
        if isinstance(node, ast.Import):
            module.imports.update({alias.asname or alias.name: alias.name for alias in node.names})
        elif isinstance(node, ast.ImportFrom) and node.module:
            module.imports.update({a.asname or a.name: f"{node.module}.{a.name}" for a in node.names})
    for node in tree.body:
        if isinstance(node, Definition):
            module.functions[node.name] = node
        elif isinstance(node, ast.ClassDef):
            module.classes[node.name] = node
            for inner in node.body:
                if isinstance(inner, Definition):
                    module.functions[f"{node.name}.{inner.name}"] = inner
    return module


class Walk:
    """The trip of a parameter. `stops` are the modules it stays in, in order.

    Args:
        modules: by dotted name.
    """

    def __init__(self, modules: dict[str, Module]) -> None:
        self.modules = modules
        self.stops: list[str] = []
        self._seen: set[tuple[str, str, str]] = set()

    def enter(self, module: str, function: str, parameter: str) -> None:
        """Walk through a function as its parameter."""
        if (module, function, parameter) in self._seen:
            return
        if not self.stops or self.stops[-1] != module:
            self.stops.append(module)
        self._seen.add((module, function, parameter))
        node = self.modules[module].functions[function]
        carried = {parameter}
        for statement in node.body:
            self._statement(statement, module, function, carried)

    @property
    def returns(self) -> int:
        """Number of stops in a module that was left before."""
        return len(self.stops) - len(set(self.stops))

    def _statement(self, node: ast.AST, module: str, function: str, carried: set[str]) -> None:
        """Walk the calls below a node, innermost first, and note the names that take the parameter over."""
        for child in ast.iter_child_nodes(node):
            self._statement(child, module, function, carried)
        if isinstance(node, ast.Call):
            self._call(node, module, function, carried)
        elif isinstance(node, ast.Assign) and self._holds(node.value, carried):
            for target in node.targets:
                names = target.elts if isinstance(target, ast.Tuple) else [target]
                carried.update(name.id for name in names if isinstance(name, ast.Name))

    @staticmethod
    def _holds(node: ast.AST, carried: set[str]) -> bool:
        """Return whether an expression is the parameter, a part of it, or the result of a call on it."""
        if isinstance(node, ast.Call):
            passed = (*node.args, *(keyword.value for keyword in node.keywords))
            return _keeps(node.func) and any(Walk._holds(argument, carried) for argument in passed)
        if isinstance(node, ast.Name):
            return node.id in carried
        return any(Walk._holds(child, carried) for child in ast.iter_child_nodes(node))

    def _call(self, call: ast.Call, module: str, function: str, carried: set[str]) -> None:
        target = self._target(call.func, module, function)
        if target is None:
            return
        where, name = target
        definition = self.modules[where].functions[name]
        names = [a.arg for a in (*definition.args.posonlyargs, *definition.args.args)]
        if "." in name and not _is_static(definition):
            names = names[1:]
        keywords = {a.arg for a in definition.args.kwonlyargs} | set(names)
        for position, argument in enumerate(call.args):
            if not isinstance(argument, ast.Starred) and self._passes(argument, carried) and position < len(names):
                self.enter(where, name, names[position])
        for keyword in call.keywords:
            if keyword.arg in keywords and self._passes(keyword.value, carried):
                self.enter(where, name, str(keyword.arg))

    @staticmethod
    def _passes(node: ast.AST, carried: set[str]) -> bool:
        """Return whether an argument hands the parameter or a part of it on."""
        return not isinstance(node, ast.Constant | ast.Compare) and Walk._holds(node, carried)

    def _target(self, called: ast.expr, module: str, function: str) -> tuple[str, str] | None:
        """Return (module, function) of what a call runs, or None outside of the package."""
        here = self.modules[module]
        if isinstance(called, ast.Name):
            dotted = here.imports.get(called.id, f"{module}.{called.id}")
        elif isinstance(called, ast.Attribute) and isinstance(called.value, ast.Name):
            owner = called.value.id
            if owner in ("self", "cls") and "." in function:
                dotted = f"{module}.{function.rpartition('.')[0]}.{called.attr}"
            else:
                dotted = f"{here.imports.get(owner, f'{module}.{owner}')}.{called.attr}"
        else:
            return None
        return self._found(dotted)

    def _found(self, dotted: str) -> tuple[str, str] | None:
        parts = dotted.split(".")
        for cut in range(len(parts) - 1, 0, -1):
            name, rest = ".".join(parts[:cut]), ".".join(parts[cut:])
            if name not in self.modules:
                continue
            found = self.modules[name]
            for candidate in (rest, f"{rest}.__init__"):
                if candidate in found.functions:
                    return name, candidate
            if rest in found.imports and found.imports[rest] != dotted:
                return self._found(found.imports[rest])
            return None
        return None


def _keeps(called: ast.expr) -> bool:
    """Return whether a call gives its argument back in another form: a class, a conversion or a method of a path."""
    name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
    return name[:1].isupper() or name in ("str", "fspath", "replace", "cast")


def _is_static(node: Definition) -> bool:
    return any(isinstance(d, ast.Name) and d.id == "staticmethod" for d in node.decorator_list)


def walk(source: Path, start: str, parameter: str) -> Walk:
    """Return the trip of a parameter of ``module:function`` through the package below `source`."""
    modules = {}
    for file in source.rglob("*.py"):
        parts = file.relative_to(source).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        modules[name] = read(file, name)
    trip = Walk(modules)
    module, _, function = start.partition(":")
    trip.enter(module, function, parameter)
    return trip


def main() -> None:
    """Print the stops of a trip."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("start", help="module:function where the parameter enters")
    parser.add_argument("parameter")
    parser.add_argument("--source", type=Path, default=Path(__file__).parents[1] / "src")
    arguments = parser.parse_args()
    trip = walk(arguments.source, arguments.start, arguments.parameter)
    for number, stop in enumerate(trip.stops, 1):
        print(f"{number:3} {stop}")
    print(f"{len(trip.stops)} stops, {trip.returns} returns, {len(set(trip.stops))} modules")


if __name__ == "__main__":
    main()
