"""Calibrations at hand: those that ship with the package, and those kept in the cache folder."""

from __future__ import annotations

import re
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

from fastreader.models.cache import cache_dir
from fastreader.moi.types import PositionBias


def find(
    reader: str, template: str, passages: int, length: int | None = None, kind: str = "question"
) -> tuple[PositionBias, str] | None:
    """The calibration for this use and where it is from, "cached" or "shipped"; None where there is none.

    Args:
        reader: its name, as `Reader.describe` says.
        template: digest of the prompt's texts.
        passages: N.
        length: L; N by default.
        kind: of score.
    """
    name = file_name(reader, template, passages, passages if length is None else length, kind)
    cached = _cache() / name
    if cached.is_file():
        return PositionBias.load(cached), "cached"
    for entry in shipped():
        if entry.name == name:
            return PositionBias.load(Path(str(entry))), "shipped"
    return None


def keep(bias: PositionBias) -> Path:
    """Put a calibration into the cache folder, where `rerank` finds it; replaces one for the same use."""
    folder = _cache()
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / file_name_of(bias)
    bias.save(path)
    return path


def shipped() -> list[Traversable]:
    """Files of the calibrations that ship with the package."""
    folder = files("fastreader.moi").joinpath("calibrations")
    if not folder.is_dir():
        return []
    return sorted((f for f in folder.iterdir() if f.name.endswith(".json")), key=lambda f: f.name)


def file_name_of(bias: PositionBias) -> str:
    """`file_name` of a calibration."""
    return file_name(bias.reader.get("name", ""), bias.template, bias.passages, bias.length, bias.kind)


def file_name(reader: str, template: str, passages: int, length: int, kind: str) -> str:
    """What identifies a calibration, as a file name."""
    slug = re.sub(r"[^A-Za-z0-9.-]+", "_", reader).strip("_.") or "unknown"
    prefix = "" if length == passages else f"-l{length}"
    return f"{slug}-{template or 'any'}-{kind}-n{passages}{prefix}.json"


def _cache() -> Path:
    return cache_dir() / "calibrations"
