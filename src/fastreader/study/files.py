"""The values in a study's file, with their relative paths resolved."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fastreader.core.checks import expect, rejecting, require, shown
from fastreader.data.files import read_object
from fastreader.data.named import is_named
from fastreader.errors import InputError

FORMATS = (".toml", ".yaml", ".yml", ".json")
Change = Callable[[str, Any], Any]


def read_study(file: Path) -> dict[str, Any]:
    """Return the values of a study's file.

    Raises:
        InputError: if the file cannot be read, or is not of its format.
    """
    expect(file.suffix in FORMATS, str(file), "a study in a .toml, .yaml or .json file", file.suffix)
    return read_object(file, FORMATS)


def absolute(values: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Return the values with relative paths resolved from `folder`.

    Values of a wrong type stay as they are, for `Study` to reject.

    A file of prompt texts of EoR, SuRe or noise layouts, and a file of a voter, is replaced by its content, so that a
    run keeps it even if the file changes.

    Raises:
        InputError: if a file other than `data` does not exist, or a file of prompt texts is invalid.
    """

    def found(name: str, value: Any, exists: Callable[[Path], bool] = Path.is_file) -> Any:
        if not isinstance(value, str):
            return value
        # Python raises these for a path that is too long or has a character that no path may have.
        with rejecting(f"{name}: expected a path, got {shown(value)}", OSError, ValueError):
            if name == "data" and is_named(value, folder):
                return value
            path = (folder / value).resolve()
            there = exists(path)
        require(name == "data" or there, f"{name}: {path}: no such file")
        return str(path)

    def pool(name: str, value: Any) -> Any:
        return value if value in ("others", "words") else found(name, value)

    def texts(name: str, value: Any) -> Any:
        from fastreader.eor.texts import NAMED, Texts, load_texts

        if not isinstance(value, str) or value in NAMED:
            return value
        try:
            given = load_texts(folder / value).to_dict()
        except InputError as error:
            raise InputError(f"{name}: {str(error).removeprefix('texts: ')}") from error
        default = Texts().to_dict()
        return {key: text for key, text in given.items() if text != default[key]}

    def words(name: str, value: Any) -> Any:
        """Return the texts of a template's file, which replace the default texts."""
        return read_object(folder / found(name, value), (".toml", ".json")) if isinstance(value, str) else value

    def voter(name: str, value: Any) -> Any:
        return read_object(folder / found(name, value)) if isinstance(value, str) else value

    def sources(name: str, value: Any) -> Any:
        here = functools.partial(found, exists=Path.exists)  # the index of a corpus is a folder
        return _changed(name, value, dict.fromkeys(value, here) if isinstance(value, dict) else {})

    def methods(name: str, value: Any) -> Any:
        if not isinstance(value, (list, tuple)):
            return value
        keys = {"bias": found, "texts": texts, "template": words, "variant_template": words, "voter": voter}
        return [_changed(f"{name}.{i}", method, keys) for i, method in enumerate(value)]

    def judges(name: str, value: Any) -> Any:
        return _changed(name, value, dict.fromkeys(value, words) if isinstance(value, dict) else {})

    changes = {"data": found, "template": found, "methods": methods, "judges": judges}
    tables: dict[str, dict[str, Change]] = {
        "noise": {"random": pool, "template": words},
        "eor": {"texts": texts, "sources": sources, "voter": voter},
        "moi": {"bias": found},
        "sure": {"template": words, "variant_template": words},
    }
    out: dict[str, Any] = _changed("", dict(values), changes)
    return out | {name: _changed(name, out[name], keys) for name, keys in tables.items() if name in out}


def _changed(name: str, table: Any, changes: Mapping[str, Change]) -> Any:
    """Return `table` with the values of some keys changed, except None, or `table` itself if it is not a dict."""
    if not isinstance(table, dict):
        return table
    prefix = f"{name}." if name else ""
    return {
        key: changes[key](f"{prefix}{key}", value) if key in changes and value is not None else value
        for key, value in table.items()
    }
