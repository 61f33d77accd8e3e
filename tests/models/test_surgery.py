"""Private attributes of other libraries are touched in one file of models/."""

import ast
from pathlib import Path

import fastreader

MODELS = Path(fastreader.__file__).parent / "models"
# Python's, and the protocol of tensor subclasses, which torch documents.
PUBLIC = {"__name__", "__qualname__", "__module__", "__version__", "__func__", "__mro__", "__init__", "__file__"}
PUBLIC |= {"__cause__", "__context__", "__getattr__", "__getitem__", "__tensor_flatten__"}
PRIVATE = {"_hf_hook", "_old_forward", "_no_split_modules", "_skip_keys_device_placement", "_hf_peft_config_loaded"}


def private_uses(file):
    """Yield private attributes of other objects than `self` and `cls`, and private names in getattr and the like."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Attribute) and node.attr.startswith("_") and node.attr not in PUBLIC:
            if not (isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")):
                yield f"{file.relative_to(MODELS)}:{node.lineno}: {ast.unparse(node)}"
        elif isinstance(node, ast.Constant) and node.value in PRIVATE:
            yield f"{file.relative_to(MODELS)}:{node.lineno}: {node.value!r}"


def test_only_surgery_touches_private_attributes():
    found = {file.name: list(private_uses(file)) for file in MODELS.rglob("*.py")}
    assert found.pop("surgery.py")  # the search finds what it looks for
    assert not [use for uses in found.values() for use in uses]
