"""Where models are kept, and how a folder is made there without ever being half-made."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock


def cache_dir() -> Path:
    """The cache folder: $FASTREADER_CACHE, else $XDG_CACHE_HOME/fastreader, else ~/.cache/fastreader."""
    if explicit := os.environ.get("FASTREADER_CACHE"):
        return Path(explicit).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base).expanduser() if base else Path.home() / ".cache") / "fastreader"


@contextmanager
def building(target: Path) -> Iterator[Path | None]:
    """Make the folder `target` once, whoever else is making it, all of it or nothing.

    Yields a temporary folder beside `target` to fill, which becomes `target` in one rename when the block
    ends without an error; or None when `target` is there already. One process at a time is inside; what
    killed processes left behind is removed by the next.
    """
    if target.is_dir():  # without the lock, which a folder that others keep may not allow to be made
        yield None
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{target}.lock"):
        for left_over in target.parent.glob(f".{target.name}.making-*"):
            shutil.rmtree(left_over)
        if target.is_dir():
            yield None
            return
        making = Path(tempfile.mkdtemp(prefix=f".{target.name}.making-", dir=target.parent))
        try:
            yield making
            making.chmod(0o755)
            making.rename(target)
        finally:
            if making.exists():
                shutil.rmtree(making)
