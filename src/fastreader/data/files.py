"""The one atomic writer of files, and a reader of JSON, TOML and YAML whose errors name the file."""

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

from fastreader.core.checks import expect
from fastreader.errors import InputError


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str], *, compress: bool = True) -> Iterator[TextIO]:
    """Open a UTF-8 text stream into a draft beside `path`, which replaces `path` if the block succeeds.

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


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write a text file atomically."""
    with replacing(path) as stream:
        stream.write(text)


def write_json(path: str | os.PathLike[str], value: Any, indent: int | None = 1) -> None:
    """Write a JSON file atomically.

    Raises:
        ValueError: if JSON cannot hold `value`; NaN and infinities are not allowed.
    """
    write_text(path, json.dumps(value, indent=indent, ensure_ascii=False, allow_nan=False) + "\n")


def read_values(path: str | os.PathLike[str], formats: Sequence[str] = (".json",)) -> Any:
    """Read a JSON, TOML or YAML file.

    Args:
        path: the file; its suffix determines the format.
        formats: accepted suffixes; a file with any other suffix is read as the first.

    Raises:
        InputError: if the file cannot be read or does not have its format.
    """
    file = Path(path)
    suffix = file.suffix if file.suffix in formats else formats[0]
    try:
        return _PARSERS[suffix](file.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{file}: cannot be read ({error.strerror})") from error
    except (ValueError, RecursionError) as error:  # wrong format, not UTF-8, or nested too deeply
        raise InputError(f"{file}: not {suffix[1:].upper()} ({error})") from error


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
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from error


_PARSERS: dict[str, Callable[[str], Any]] = {
    ".json": json.loads,
    ".toml": tomllib.loads,
    ".yaml": _yaml,
    ".yml": _yaml,
}
