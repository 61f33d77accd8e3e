"""Files written whole or not at all, and files of values read with errors that name them."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import os
import shutil
import tomllib
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO

from fastreader.errors import InputError


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[TextIO]:
    """Open a UTF-8 text stream into a draft beside `path`, which replaces `path` when the block ends well.

    Whatever fails leaves the file that was there, and no draft. A name ending in ".gz" is compressed.

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
                if target.name.lower().endswith(".gz"):
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


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write a text file, whole or not at all."""
    with replacing(path) as stream:
        stream.write(text)


def write_json(path: str | os.PathLike[str], value: Any, indent: int | None = 1) -> None:
    """Write a JSON file, whole or not at all.

    Raises:
        ValueError: if JSON cannot hold `value`; NaN and infinities are not allowed.
    """
    write_text(path, json.dumps(value, indent=indent, ensure_ascii=False, allow_nan=False) + "\n")


def read_values(path: str | os.PathLike[str], formats: Sequence[str] = (".json",)) -> Any:
    """Read a JSON, TOML or YAML file.

    Args:
        path: the file; its suffix says the format.
        formats: the suffixes that are accepted; any other name is read as the first.

    Raises:
        InputError: naming the file, if it cannot be read or is not of its format.
    """
    file = Path(path)
    suffix = file.suffix if file.suffix in formats else formats[0]
    try:
        return _PARSERS[suffix](file.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{file}: cannot be read ({error.strerror})") from error
    except (ValueError, RecursionError) as error:  # not of its format, not UTF-8, or nested too deeply
        raise InputError(f"{file}: not {suffix[1:].upper()} ({error})") from error


def read_object(path: str | os.PathLike[str], formats: Sequence[str] = (".json",)) -> dict[str, Any]:
    """Read a file as `read_values` does, and check that it holds keys with values.

    Raises:
        InputError: as `read_values`; or if the file holds something else.
    """
    values = read_values(path, formats)
    if not isinstance(values, dict):
        raise InputError(f"{Path(path)}: expected an object with keys and values, got {type(values).__name__}")
    return values


def _yaml(text: str) -> Any:
    import yaml

    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from error


_PARSERS: dict[str, Callable[[str], Any]] = {
    ".json": json.loads,
    ".toml": tomllib.loads,
    ".yaml": _yaml,
    ".yml": _yaml,
}
