"""Find the cache folder, and build folders in it atomically."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock


def cache_dir() -> Path:
    """Return the cache folder: $FASTREADER_CACHE, else $XDG_CACHE_HOME/fastreader, else ~/.cache/fastreader."""
    if explicit := os.environ.get("FASTREADER_CACHE"):
        return Path(explicit).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base).expanduser() if base else Path.home() / ".cache") / "fastreader"


@contextmanager
def building(target: Path, valid: Callable[[Path], bool] = Path.is_dir) -> Iterator[Path | None]:
    """Build the folder `target` once across processes, whole or not at all.

    Yields a temporary folder next to `target` to fill, which is renamed to `target` if the block ends without an
    error; or None if `target` is valid. An invalid one stays until the new one replaces it. One process at a time is
    inside. The next one removes what killed processes left behind.
    """
    if valid(target):  # checked without the lock, which may not be writable in a cache owned by others
        yield None
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{target}.lock"):
        for left_over in target.parent.glob(f".{target.name}.making-*"):
            shutil.rmtree(left_over)
        if valid(target):
            yield None
            return
        making = Path(tempfile.mkdtemp(prefix=f".{target.name}.making-", dir=target.parent))
        try:
            yield making
            making.chmod(0o755)
            replaced = target.parent / f".{target.name}.making-replaced"
            if target.is_dir():
                target.rename(replaced)
            making.rename(target)
            shutil.rmtree(replaced, ignore_errors=True)  # or by the next one
        finally:
            if making.exists():
                shutil.rmtree(making)
