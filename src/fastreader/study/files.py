"""A study's file: its values, and the paths in them."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fastreader.errors import InputError


def read_values(file: Path) -> dict[str, Any]:
    """The values of a .toml, .yaml, .yml or .json file.

    Raises:
        InputError: no such file, or not of its format.
    """
    if not file.is_file():
        raise InputError(f"{file}: no such file")
    readers: dict[str, Callable[[str], Any]] = {
        ".toml": tomllib.loads,
        ".json": json.loads,
        ".yaml": _yaml,
        ".yml": _yaml,
    }
    if file.suffix not in readers:
        raise InputError(f"{file}: expected a study in a .toml, .yaml or .json file")
    try:
        values: Any = readers[file.suffix](file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(f"{file}: cannot be read as {file.suffix[1:]} ({error})") from error
    if not isinstance(values, dict):
        raise InputError(f"{file}: expected keys with values, got {type(values).__name__}")
    return values


def _yaml(text: str) -> Any:
    import yaml

    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from error


def absolute(values: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """The values with relative paths made absolute, from `folder`; what is no text stays for the model to refuse.

    A file of EoR's prompt texts is replaced by what is in it, so that a run knows its texts, whatever becomes of the
    file.

    Raises:
        InputError: a file other than `data` does not exist, or a file of prompt texts is none.
    """

    def found(key: str, text: Any) -> Any:
        if not isinstance(text, str):
            return text
        path = (folder / text).resolve()
        if key != "data" and not path.is_file():
            raise InputError(f"{key}: {path}: no such file")
        return str(path)

    def texts(key: str, text: Any) -> Any:
        from fastreader.eor.texts import NAMED, Texts, load_texts

        if not isinstance(text, str) or text in NAMED:
            return text
        try:
            given = load_texts(folder / text).to_dict()
        except InputError as error:
            raise InputError(f"{key}: {str(error).removeprefix('texts: ')}") from error
        usual = Texts().to_dict()
        return {name: words for name, words in given.items() if words != usual[name]}

    replaced = {"bias": found, "texts": texts}  # of a method's options
    out = dict(values)
    for key in ("data", "template"):
        if out.get(key) is not None:
            out[key] = found(key, out[key])
    if isinstance(noise := out.get("noise"), dict) and noise.get("random", "others") not in ("others", "words"):
        out["noise"] = {**noise, "random": found("noise.random", noise["random"])}
    if isinstance(eor := out.get("eor"), dict):
        out["eor"] = eor = {**eor, **({"texts": texts("eor.texts", eor["texts"])} if "texts" in eor else {})}
        if isinstance(sources := eor.get("sources"), dict):
            eor["sources"] = {k: found(f"eor.sources.{k}", v) for k, v in sources.items()}
    if isinstance(moi := out.get("moi"), dict) and "bias" in moi:
        out["moi"] = {**moi, "bias": found("moi.bias", moi["bias"])}
    if isinstance(methods := out.get("methods"), (list, tuple)):
        out["methods"] = [
            {k: replaced[k](f"methods.{i}.{k}", v) if k in replaced and v else v for k, v in m.items()}
            if isinstance(m, dict)
            else m
            for i, m in enumerate(methods)
        ]
    return out
