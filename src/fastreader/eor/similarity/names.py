"""Whether the model a similarity names can be there, told without loading it: an ensemble answers long before it votes.

What a hub has, only the hub can say; a folder that is not there, or a name that no hub allows, is known at once.
"""

from __future__ import annotations

import re
from pathlib import Path

from fastreader.errors import InputError
from fastreader.models.encoders import PACKAGED_ENCODERS, packaged_encoder

_PART = r"[A-Za-z0-9_](?:[\w.-]{0,94}[A-Za-z0-9_])?"
_HUB_ID = re.compile(rf"(?:{_PART}/)?{_PART}", re.ASCII)


def check_names(names: list[str] | tuple[str, ...]) -> None:
    """Refuse similarities whose model cannot be loaded.

    Args:
        names: as `resolve` takes them, checked by it; those without a model are passed over.

    Raises:
        InputError: the model is neither a folder with a config.json nor of a hub id's form, nor packaged.
    """
    for name in names:
        kind, _, model = name.partition(":")
        if kind == "bertscore" and model and packaged_encoder(model) is None:
            _check(name, model, f"{' or '.join(PACKAGED_ENCODERS)}, a folder of an encoder, or a hub id")
        elif kind == "nli" and model != "reader":
            _check(name, model, "reader, a folder of a classifier, or a hub id")


def _check(name: str, model: str, expected: str) -> None:
    path = Path(model)
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise InputError(f"{name}: the folder {model} has no config.json; expected {expected}")
    elif path.exists():
        raise InputError(f"{name}: {model} is a file; expected {expected}")
    elif not _HUB_ID.fullmatch(model) or ".." in model or "--" in model:
        raise InputError(f"{name}: there is no folder {model}; expected {expected}")
