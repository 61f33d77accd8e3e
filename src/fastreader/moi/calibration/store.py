"""Find calibrations: shipped with the package, or kept in the cache folder."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from functools import lru_cache
from glob import escape
from pathlib import Path

from fastreader.core.checks import require
from fastreader.data.files import cache_dir
from fastreader.data.fingerprints import NOT_READ, file_digest
from fastreader.moi.quantities.position_bias import PositionBias

_LONGEST = 120  # characters of a reader's name in a file's
SHIPPED = Path(__file__).with_name("shipped")


def find(
    reader: Mapping[str, str],
    template: str,
    passages: int,
    length: int | None = None,
    kind: str = "question",
    per_token: bool = False,
) -> tuple[PositionBias, str] | None:
    """Return the calibration for a use and its source, "cached" or "shipped", or None without one.

    Args:
        reader: as `Reader.describe` returns it; a calibration belongs to its revision, or to its name without one. If
            the revision is `NOT_READ`, any calibration of the name serves.
        template: digest of the prompt's texts.
        passages: N.
        length: L; N by default.
        kind, per_token: the score, as in `Observations`.

    Raises:
        InputError: if the file for this use holds a calibration for another.
    """
    ours, revision = _of(reader)
    length = passages if length is None else length
    name = file_name(ours, revision, template, passages, length, kind, per_token=per_token)
    kept = cache_dir() / "calibrations"
    cached = kept / name
    if revision == NOT_READ:  # the latest of any weights of this name
        any_weights = f"{escape(_slug(ours))}-r*{escape(name.partition(f'-r{revision}')[2])}"
        found = max(kept.glob(any_weights), key=lambda path: path.stat().st_mtime, default=None)
        return None if found is None else (_loaded(found)[0], "cached")
    if revision and not cached.is_file():  # the same weights may have another name
        others = sorted(kept.glob(f"*{escape(name.removeprefix(_slug(ours)))}"))
        cached = next((path for path in others if _loaded(path)[1] == path.name), cached)
    for path, source in ((cached, "cached"), (SHIPPED / name, "shipped")):
        if path.is_file():
            bias, belongs = _loaded(path)
            theirs, other = _of(bias.reader)
            fits = belongs == path.name and revision == other and (bool(revision) or ours == theirs)
            got = f"a calibration of {theirs!r} that belongs in {belongs}"
            require(fits, f"{path}: holds {got}, expected one of {ours!r}")
            return bias, source
    return None


def _loaded(path: Path) -> tuple[PositionBias, str]:
    """Return a file's calibration and the name that the file should have, reading changed files again."""
    stat = path.stat()
    return _read(path, stat.st_mtime_ns, stat.st_ino)


@lru_cache(maxsize=64)
def _read(path: Path, _modified: int, _inode: int) -> tuple[PositionBias, str]:
    bias = PositionBias.load(path)
    return bias, file_name_of(bias)


def stamp() -> tuple[tuple[str, int, int], ...]:
    """Return path, time of change and inode of every available calibration, to notice new and changed files."""
    found = []
    for folder in (SHIPPED, cache_dir() / "calibrations"):
        if folder.is_dir():
            with os.scandir(folder) as entries:
                found += [(e.path, e.stat().st_mtime_ns, e.inode()) for e in entries if e.name.endswith(".json")]
    return tuple(sorted(found))


def at_hand(reader: Mapping[str, str], template: str) -> dict[str, str]:
    """Return the files that `find` can return for a reader and template: file name -> SHA-256 of the content.

    Cached files hide shipped ones of the same name. A run that uses these calibrations must not resume after one of
    them has changed.
    """
    name, revision = _of(reader)
    slug = rf".+-r{re.escape(revision)}" if revision else re.escape(_slug(name))
    ours = re.compile(rf"{slug}-{re.escape(template or 'any')}-")
    paths = {path.name: path for folder in (SHIPPED, cache_dir() / "calibrations") for path in folder.glob("*.json")}
    return {name: file_digest(path) for name, path in sorted(paths.items()) if ours.match(name)}


def _of(reader: Mapping[str, str]) -> tuple[str, str]:
    return reader.get("name", ""), reader.get("revision", "")


def keep(bias: PositionBias) -> Path:
    """Save a calibration in the cache folder, where `rerank` finds it, replacing one for the same use."""
    folder = cache_dir() / "calibrations"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / file_name_of(bias)
    bias.save(path)
    return path


def file_name_of(bias: PositionBias) -> str:
    """Return the `file_name` of a calibration."""
    used = bias.template, bias.num_passages, bias.length, bias.kind
    return file_name(*_of(bias.reader), *used, per_token=bias.per_token)


@lru_cache(maxsize=256)
def file_name(
    name: str, revision: str, template: str, passages: int, length: int, kind: str, *, per_token: bool = False
) -> str:
    """Return the file name that identifies a calibration, with a digest if the reader's name needs escaping."""
    of = f"{_slug(name)}-r{revision}" if revision else _slug(name)
    scored = f"{kind}-per-token" if per_token else kind
    prefix = "" if length == passages else f"-l{length}"
    return f"{of}-{template or 'any'}-{scored}-n{passages}{prefix}.json"


def _slug(reader: str) -> str:
    slug = re.sub(r"[^A-Za-z0-9.-]+", "_", reader).strip("_.")[:_LONGEST] or "unknown"
    return (
        slug if slug == reader else f"{slug}-{hashlib.sha256(reader.encode('utf-8', 'surrogatepass')).hexdigest()[:8]}"
    )
