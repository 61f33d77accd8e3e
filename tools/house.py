"""Print the figures that the layout of the package is held to. Exit with 1 if one is over its bar.

    python tools/house.py                   structure, lines and functions entered by warm calls
    python tools/house.py --static          structure and lines only; no model is loaded
    python tools/house.py --source DIR      another checkout, to compare with

Structure counts every import, also under TYPE_CHECKING and inside functions. A room is a file or folder directly inside
a folder, an arrow an import between two rooms, a floor one step of the longest chain of arrows. "Functions entered" are
the distinct functions of the package that one call runs after an equal call has warmed it up. Python 3.11, for which
the bars were set, runs comprehensions as functions; their number is shown too.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parent))
import repeats
import walk

PACKAGE = "fastreader"
MODEL = "smollm2-135m"
BARS = {
    "entries at the root": 19,
    "layers": 12,
    "import circles": 0,
    "models: rooms": 12,
    "models: floors": 6,
    "models: arrows": 40,
    "moi: rooms": 12,
    "moi: floors": 6,
    "moi: arrows": 40,
    "reader: rooms": 13,
    "reader: floors": 7,
    "reader: arrows": 30,
    "stops of Reader.load's model": 20,
    "returns of Reader.load's model": 10,
    "lines of the longest module": 500,
    "lines of a module, mean": 145,
    "lines of argument checks outside ops": 900,
    "pairs of places that repeat six lines": 90,
    "names of several classes": 0,
    "functions with more than 6 positional arguments": 0,
    "score_permutations": 110,
    "generate": 110,
    "moi.rerank": 150,
    "sure.answer": 200,
}

MOST_ARGUMENTS = 6
FOLDERS = ("models", "moi", "reader")
COMPREHENSIONS = {"<listcomp>", "<dictcomp>", "<setcomp>", "<genexpr>"}

Graph = dict[str, set[str]]


def files_of_modules(source: Path) -> dict[str, Path]:
    """Return the files of the package's modules by the modules' names."""
    modules = {}
    for file in (source / PACKAGE).rglob("*.py"):
        parts = file.relative_to(source).with_suffix("").parts
        modules[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    return modules


def import_graph(source: Path) -> Graph:
    """Return the modules of the package and what each imports of it."""
    modules = files_of_modules(source)
    graph: Graph = {}
    for name, file in modules.items():
        found = set()
        for node in walk.nodes(file):
            if isinstance(node, ast.Import):
                found.update(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module:
                full = (f"{node.module}.{alias.name}" for alias in node.names)
                found.update(path if path in modules else node.module for path in full)
        graph[name] = (found & modules.keys()) - {name}
    return graph


def rooms(graph: Graph, folder: str = PACKAGE) -> Graph:
    """Return the graph of what is directly in a folder of the package. Names of its ``__init__`` are left out."""
    depth, inside = folder.count(".") + 1, f"{folder}."
    entries: Graph = {}
    for module, imported in graph.items():
        if module.startswith(inside):
            here = entries.setdefault(module.split(".")[depth], set())
            here.update(other.split(".")[depth] for other in imported if other.startswith(inside))
    return {name: others - {name} for name, others in entries.items()}


def circles(graph: Graph) -> list[list[str]]:
    """Return the strongly connected components of more than one module (Tarjan 1972)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in sorted(graph[node]):
            if other not in index:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], index[other])
        if low[node] == index[node]:
            component = stack[stack.index(node) :]
            del stack[-len(component) :]
            if len(component) > 1:
                found.append(sorted(component))

    for node in sorted(graph):
        if node not in index:
            visit(node)
    return found


def longest_path(graph: Graph) -> list[str]:
    """Return the longest chain of imports in a graph without circles."""
    best: dict[str, list[str]] = {}

    def walk(node: str) -> list[str]:
        if node not in best:
            best[node] = [node, *max((walk(other) for other in sorted(graph[node])), key=len, default=[])]
        return best[node]

    return max((walk(node) for node in sorted(graph)), key=len)


def check_lines(source: Path) -> int:
    """Count the lines outside ops/ that check arguments by hand.

    They are the functions named check..., `__post_init__` methods that raise, and every ``if`` or ``except`` whose body
    raises InputError.
    """
    total = 0
    for file in (source / PACKAGE).rglob("*.py"):
        if "ops" in file.relative_to(source).parts:
            continue
        lines: set[int] = set()
        for node in walk.nodes(file):
            checks = False
            if isinstance(node, ast.FunctionDef):
                checks = bool(re.match("_?check", node.name))
                checks |= node.name == "__post_init__" and any(map(_raises_input_error, ast.walk(node)))
            elif isinstance(node, ast.If | ast.ExceptHandler):
                checks = any(map(_raises_input_error, node.body))
            if checks:
                end = node.body[-1].end_lineno if isinstance(node, ast.If) else node.end_lineno
                lines.update(range(node.lineno, (end or node.lineno) + 1))
        total += len(lines)
    return total


def repeated_classes(source: Path) -> list[str]:
    """Return the names that several classes have, but for those that the integrations give their users.

    Each library's users look for `FastreaderRerank`, as they know `CohereRerank`.
    """
    names = [
        node.name
        for file in (source / PACKAGE).rglob("*.py")
        if "integrations" not in file.relative_to(source).parts or file.parent.name in ("ray", "serve")
        for node in walk.nodes(file)
        if isinstance(node, ast.ClassDef)
    ]
    return sorted(name for name, count in Counter(names).items() if count > 1)


def long_signatures(source: Path) -> list[str]:
    """Return the functions that accept more positional arguments than `MOST_ARGUMENTS`, kernels left out."""
    found = []
    for file in (source / PACKAGE).rglob("*.py"):
        for node in walk.nodes(file):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            names = [a.arg for a in (*node.args.posonlyargs, *node.args.args) if a.arg not in ("self", "cls")]
            is_kernel = any("triton" in ast.unparse(decorator) for decorator in node.decorator_list)
            if len(names) > MOST_ARGUMENTS and not is_kernel:
                found.append(f"{file.relative_to(source)}:{node.lineno} {node.name} ({len(names)})")
    return found


def _raises_input_error(node: ast.AST) -> bool:
    return isinstance(node, ast.Raise) and node.exc is not None and ast.unparse(node.exc).startswith("InputError")


def functions_entered(call: Callable[[], Any], source: Path) -> tuple[int, int]:
    """Count the distinct functions of the package that a warm `call` enters, and the comprehensions among them."""
    call()
    inside = str(source / PACKAGE)
    entered = set()

    def watch(frame: Any, event: str, _argument: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(inside):
            entered.add((code.co_filename, code.co_qualname))

    sys.setprofile(watch)
    try:
        call()
    finally:
        sys.setprofile(None)
    return len(entered), sum(name.rpartition(".")[2] in COMPREHENSIONS for _, name in entered)


def warm_calls() -> dict[str, Callable[[], Any]]:
    """Return the calls that are counted, on the packaged reader."""
    import fastreader as fr
    from fastreader import moi, sure

    reader = fr.Reader.load(MODEL)
    question = "Which river is in Cairo?"
    passages = ["The Nile is in Cairo.", "The Seine is in Paris.", "Cats sleep a lot.", "Oslo is cold.", "Tea is hot."]
    return {
        "score_permutations": lambda: fr.score_permutations(reader, question, passages, ["the Nile", "the Seine"]),
        "generate": lambda: reader.generate([question], max_new_tokens=4, temperature=0.7, stop=["\n"]),
        "moi.rerank": lambda: moi.rerank(reader, question, passages),
        "sure.answer": lambda: sure.answer(reader, question, passages, max_summary_tokens=8),
    }


def structure(source: Path) -> tuple[dict[str, int], list[str]]:
    """Return the figures that need no model, and lines that name what is over a bar."""
    graph = import_graph(source)
    entries = rooms(graph)
    found = circles(graph) + circles(entries)
    path = [] if circles(entries) else longest_path(entries)
    trip = walk.walk(source, f"{PACKAGE}.reader.reader:Reader.load", "model")
    classes, signatures = repeated_classes(source), long_signatures(source)
    lines = [len(f.read_text(encoding="utf-8").splitlines()) for f in source.rglob("*.py")]
    figures = {"entries at the root": len(entries), "layers": len(path), "import circles": len(found)}
    for folder in FOLDERS:
        inner = rooms(graph, f"{PACKAGE}.{folder}")
        figures[f"{folder}: rooms"] = len(inner)
        figures[f"{folder}: floors"] = len(longest_path(inner))
        figures[f"{folder}: arrows"] = sum(map(len, inner.values()))
    figures |= {
        "stops of Reader.load's model": len(trip.stops),
        "returns of Reader.load's model": trip.returns,
        "lines of the longest module": max(lines),
        "lines of a module, mean": round(sum(lines) / len(lines)),
        "lines of argument checks outside ops": check_lines(source),
        "pairs of places that repeat six lines": len(repeats.repeats(source)),
        "names of several classes": len(classes),
        "functions with more than 6 positional arguments": len(signatures),
    }
    notes = [f"lines in all: {sum(lines):,}", f"longest path: {' -> '.join(path)}"]
    notes += [f"circle: {', '.join(circle)}" for circle in found]
    notes += [f"several classes: {name}" for name in classes] + [f"positional arguments: {s}" for s in signatures]
    for kept in (walk.parsed, walk.nodes):
        kept.cache_clear()
    return figures, notes


def main() -> None:
    """Print the figures with their bars."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--static", action="store_true", help="Load no model.")
    parser.add_argument("--source", type=Path, default=Path(__file__).parents[1] / "src", help="Folder of the package.")
    arguments = parser.parse_args()
    source = arguments.source.resolve()
    figures, notes = structure(source)
    comprehensions: dict[str, int] = {}
    if not arguments.static:
        sys.path.insert(0, str(source))
        for name, call in warm_calls().items():
            figures[name], comprehensions[name] = functions_entered(call, source)
    for name, value in figures.items():
        note = f"   ({comprehensions[name]} comprehensions)" if name in comprehensions else ""
        print(f"{name:48} {value:>8,}   bar {BARS[name]:>7,}   {'ok' if value <= BARS[name] else 'over'}{note}")
    print("\n".join(notes))
    sys.exit(any(value > BARS[name] for name, value in figures.items()))


if __name__ == "__main__":
    main()
