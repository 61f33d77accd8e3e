"""The notebook runs as it stands, cell after cell, and shows what its texts promise."""

import ast
import json
from pathlib import Path

import pytest

pytestmark = pytest.mark.usefixtures("loaded_once")

NOTEBOOK = Path(__file__).parent.parent / "examples" / "tour.ipynb"


def run(source, names):
    """Run a cell. Return the value of its last line if that is an expression, as a notebook shows it."""
    tree = ast.parse(source)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, str(NOTEBOOK), "exec"), names)
    return None if last is None else eval(compile(ast.Expression(last.value), str(NOTEBOOK), "eval"), names)


def test_the_notebook(packaged_folder, capsys):
    pytest.importorskip("matplotlib", reason="needs the extra plot")
    pytest.importorskip("pandas", reason="needs the extra pandas")
    notebook = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    assert notebook["nbformat"] == 4 and all("id" in cell for cell in notebook["cells"])
    names = {}
    shown = []
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            assert not cell["outputs"] and cell["execution_count"] is None  # outputs would not stay true
            shown.append(run("".join(cell["source"]), names))
    _, ranked, placed, _, table, figure, bias = shown
    assert ranked[0].index in (1, 3) and placed[-1] == ranked[0].index
    told = capsys.readouterr().out
    assert "all orders together:" in told and len(names["scores"].permutations) == 4
    assert len(table) and type(figure).__name__ == type(bias).__name__ == "Figure"
