"""Write files and cache folders atomically, and read JSON, TOML and YAML with errors that name the file."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import os
import shutil
import tempfile
import tomllib
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from filelock import FileLock

from fastreader.core.checks import expect, rejecting, require

MAX_LINE = 64 * 2**20
"""Longest line of JSON lines, runs and judgements in bytes, unpacked: few bytes of gzip unpack to very many."""

MAX_FILE = 2**30
"""Longest file that is read whole (.json, .toml, .yaml) in bytes, unpacked."""

HEAD = 512
"""Number of a file's first bytes that `container` looks at."""

_CONTAINERS = (
    (b"\x28\xb5\x2f\xfd", "zst data"),
    (b"\xfd7zXZ\x00", "xz data"),
    (b"BZh", "bz2 data"),
    (b"\x04\x22\x4d\x18", "lz4 data"),
    (b"\x1f\x8b", "gzip data"),
    (b"PK\x03\x04", "a zip archive"),
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive"),
    (b"Rar!", "a rar archive"),
    (b"PAR1", "a Parquet file"),
    (b"ARROW1", "an Arrow file"),
    (b"FEA1", "a Feather file"),
    (b"\xff\xff\xff\xff", "an Arrow stream"),
    (b"Obj\x01", "an Avro file"),
    (b"ORC", "an ORC file"),
    (b"\x89HDF", "an HDF5 file"),
    (b"\x93NUMPY", "a NumPy array"),
    (b"SQLite format 3", "an SQLite database"),
    (b"%PDF-", "a PDF"),
    (b"\xd0\xcf\x11\xe0", "an Office document"),
    (b"\xff\xfe\x00\x00", "UTF-32 text"),
    (b"\x00\x00\xfe\xff", "UTF-32 text"),
    (b"\xff\xfe", "UTF-16 text"),
    (b"\xfe\xff", "UTF-16 text"),
)
_TABLES = ("a Parquet file", "an Arrow file", "an Arrow stream", "a Feather file", "an Avro file", "an ORC file")

_MAX_NODES = 1_000_000  # of a YAML file, with every alias counted as the values it represents


def check_readable(path: str | os.PathLike[str]) -> None:
    """Check that a file is not a named pipe, from which reading may never end.

    Standard input and the pipes of a shell, such as /dev/stdin and /dev/fd/63, are readable.
    """
    file = Path(path)
    unnamed = str(file.absolute()).startswith(("/dev/", "/proc/"))
    require(unnamed or not file.is_fifo(), f"{file}: is a named pipe, which may never end; pass it on standard input")


def container(head: bytes) -> str:
    """Return what begins with these bytes instead of UTF-8 text, in words for a message, or "" for text."""
    kind = next((name for magic, name in _CONTAINERS if head.startswith(magic)), "")
    if head[257:262] == b"ustar":
        kind = "a tar archive"
    elif not kind and head[:1] == b"\x80" and head[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05"):
        kind = "a pickle"
    elif not kind and b"\x00" in head[:4]:
        kind = "UTF-16 or UTF-32 text" if head[:4].strip(b"\x00").isascii() else "binary data"
    how = "; read it with pandas and pass df.to_dict('records')" if kind in _TABLES else ""
    return f"{kind}{how}"


@contextmanager
def replacing(path: str | os.PathLike[str], *, compress: bool = True) -> Iterator[TextIO]:
    """Open a UTF-8 text stream into a draft next to `path`, which replaces `path` if the block succeeds.

    After a failure the old file is unchanged and no draft is left.

    Args:
        path: the file to create or replace; a replaced file keeps its mode.
        compress: gzip a file whose name ends in ".gz".

    Raises:
        OSError: if the draft cannot be written; the error names `path`.
    """
    target = Path(path)
    draft = target.with_name(f".{target.name}.{uuid.uuid4().hex[:8]}.tmp")
    try:
        with draft.open("xb") as raw:
            if target.exists():
                shutil.copymode(target, draft)
            with contextlib.ExitStack() as stack:
                binary: Any = raw
                if compress and target.name.lower().endswith(".gz"):
                    binary = stack.enter_context(gzip.GzipFile(filename="", mode="wb", fileobj=raw, mtime=0))
                stream = io.TextIOWrapper(binary, encoding="utf-8", newline="\n")
                yield stream
                stream.flush()
                stream.detach()
            raw.flush()
            os.fsync(raw.fileno())
        draft.replace(target)
    except BaseException as error:
        draft.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename is None:
            error.filename = str(target)
        raise


def is_draft(path: Path) -> bool:
    """Return whether a file is a draft of `replacing`, which a kill leaves behind."""
    return path.name.startswith(".") and path.suffix == ".tmp"


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write a text file atomically."""
    with replacing(path) as stream:
        stream.write(text)


def json_text(value: Any, indent: int | None = None, encoding: str = "utf-8") -> str:
    """Return a value as JSON, with escapes only if `encoding` cannot hold it otherwise, as half a surrogate pair.

    Raises:
        TypeError, ValueError: if JSON cannot hold `value`; NaN and infinities are not allowed.
    """
    text = json.dumps(value, indent=indent, ensure_ascii=False, allow_nan=False)
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return json.dumps(value, indent=indent, allow_nan=False)
    return text


def write_json(path: str | os.PathLike[str], value: Any, indent: int | None = 1) -> None:
    """Write a JSON file atomically.

    Raises:
        ValueError: if JSON cannot hold `value`; NaN and infinities are not allowed.
    """
    write_text(path, json_text(value, indent) + "\n")


def read_values(path: str | os.PathLike[str], formats: Sequence[str] = (".json",)) -> Any:
    """Read a JSON, TOML or YAML file.

    Args:
        path: the file; its suffix determines the format.
        formats: accepted suffixes; a file with any other suffix is read as the first.

    Raises:
        InputError: if the file cannot be read, is longer than `MAX_FILE`, or does not have its format.
    """
    file = Path(path)
    suffix = file.suffix if file.suffix in formats else formats[0]
    check_readable(file)
    with rejecting(f"{file}: cannot be read", OSError), rejecting(f"{file}: does not fit in memory", MemoryError):
        with file.open("rb") as stream:
            content = stream.read(MAX_FILE + 1)
        require(len(content) <= MAX_FILE, f"{file}: is longer than {MAX_FILE:,} bytes")
        kind = container(content[:HEAD])
        require(not kind, f"{file}: expected UTF-8 text, got {kind}")
        # Raised for another format, for text that is not UTF-8, and for values nested too deeply.
        with rejecting(f"{file}: not {suffix[1:].upper()}", OverflowError, RecursionError, ValueError):
            return _PARSERS[suffix](content.decode("utf-8"))


def read_object(path: str | os.PathLike[str], formats: Sequence[str] = (".json",)) -> dict[str, Any]:
    """Read a file as `read_values` does, and check that it holds keys with values.

    Raises:
        InputError: as `read_values`; or if the file holds no object.
    """
    values = read_values(path, formats)
    expect(isinstance(values, dict), str(path), "an object with keys and values", values)
    return values  # type: ignore[no-any-return]


def _yaml(text: str) -> Any:
    import yaml

    try:
        found = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from error
    except (AttributeError, KeyError, TypeError) as error:  # what its constructors raise for odd scalars
        raise ValueError(f"{type(error).__name__}: {error}") from error
    nodes = 0
    waiting = [found]
    while waiting:
        nodes += 1
        if nodes > _MAX_NODES:  # aliases of aliases, which grow to any size once they are written out, or of themselves
            raise ValueError(f"more than {_MAX_NODES:,} values, or a value inside itself")
        value = waiting.pop()
        waiting += value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return found


_PARSERS: dict[str, Callable[[str], Any]] = {
    ".json": json.loads,
    ".toml": tomllib.loads,
    ".yaml": _yaml,
    ".yml": _yaml,
}


def cache_dir() -> Path:
    """Return the cache folder: $FASTREADER_CACHE, else $XDG_CACHE_HOME/fastreader, else ~/.cache/fastreader.

    Raises:
        InputError: if a variable names the home of an unknown user, or there is no home.
    """
    for name, below in (("FASTREADER_CACHE", ""), ("XDG_CACHE_HOME", "fastreader")):
        if given := os.environ.get(name):
            with rejecting(f"{name}: expected a folder, got {given!r}", RuntimeError):
                return Path(given).expanduser() / below
    with rejecting("FASTREADER_CACHE: expected a folder, since this user has no home", RuntimeError):
        return Path.home() / ".cache" / "fastreader"


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
