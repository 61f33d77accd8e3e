"""Converting a GGUF file once to a folder that loads fast."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
import logging
import os
import shutil
import struct
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastreader.errors import MissingExtraError, ModelFileError, UnsupportedModelError
from fastreader.models.cache import building, cache_dir
from fastreader.models.silence import no_bars

if TYPE_CHECKING:
    import torch

logger = logging.getLogger(__name__)

_MAGIC = b"GGUF"
_WIDE = ("F16", "F32", "F64")
_CONVERSION = 2  # counts the ways a file was converted; folders made in an older way are not used


def converted(path: Path) -> Path:
    """The folder with the contents of the GGUF file at `path`, converted now if it never was.

    The folder is named by the file's SHA-256, so a changed file is converted anew. The digest is kept in the
    cache folder under the file's path, size and times, so a file is hashed once as long as these stay.

    Raises:
        MissingExtraError: `gguf` or `accelerate` is not installed.
        ModelFileError: not a GGUF file, or cut short.
    """
    check_magic(path)  # before all of it is read for its digest
    target = cache_dir() / "gguf" / f"{_digest(path)[:24]}-{_CONVERSION}"
    with building(target) as making:
        if making is not None:
            logger.warning("converting %s once; this takes about 20 seconds for 135M parameters", path.name)
            convert(path, making)
    return target


def need_extra() -> None:
    """Raise MissingExtraError where a package that converting takes is not installed."""
    for package in ("gguf", "accelerate"):
        if importlib.util.find_spec(package) is None:
            raise MissingExtraError(package, "gguf")


def convert(path: Path, folder: Path) -> None:
    """Write the model and tokenizer of a GGUF file to `folder`: safetensors, config, tokenizer.

    Quantised and BF16 files become bfloat16; a file most of whose weights are F16, F32 or F64 becomes float32,
    which keeps every bit of the first two.

    Raises:
        MissingExtraError: `gguf` or `accelerate` is not installed.
        UnsupportedModelError: transformers does not read this architecture from GGUF.
        ModelFileError: not a GGUF file, cut short, or without some of the model's weights.
    """
    need_extra()
    check_complete(path)
    import torch
    import transformers

    source = {"pretrained_model_name_or_path": str(path.parent), "gguf_file": path.name, "local_files_only": True}
    with no_bars():
        try:
            quantised, told = transformers.AutoModelForCausalLM.from_pretrained(
                dtype=torch.float32, output_loading_info=True, **source
            )
        except ValueError as error:  # an architecture transformers cannot read from GGUF
            raise UnsupportedModelError(f"{path}: transformers cannot load it: {error}") from error
        refuse_partial(str(path), told)
        config = quantised.config
        # transformers leaves the mark of the GGUF on the config, which then refuses to be saved.
        if hasattr(config, "quantization_config"):
            del config.quantization_config
        plain = transformers.AutoModelForCausalLM.from_config(config, dtype=storage_type(path))
        plain.load_state_dict(quantised.state_dict())
        plain.save_pretrained(folder)
        transformers.AutoTokenizer.from_pretrained(**source).save_pretrained(folder)
    # save_pretrained keeps the weights to their owner; a shared cache is read by others.
    for file in folder.iterdir():
        file.chmod(0o644)


def check_magic(path: Path) -> None:
    """Refuse a file that is not GGUF by its first bytes.

    Raises:
        ModelFileError: naming what is wrong.
    """
    with path.open("rb") as stream:
        magic = stream.read(4)
    if magic != _MAGIC:
        raise ModelFileError(f"{path}: not a GGUF file (it starts with {magic!r}, expected {_MAGIC!r})")


def check_complete(path: Path) -> None:
    """Refuse a file that is not GGUF or ends before its last tensor does.

    Raises:
        ModelFileError: naming what is wrong.
    """
    from gguf import GGUFReader

    check_magic(path)
    try:
        reader = GGUFReader(path)
        end = max((int(t.data_offset) + int(t.n_bytes) for t in reader.tensors), default=0)
    except (ValueError, IndexError, KeyError, struct.error, UnicodeDecodeError) as error:
        raise ModelFileError(f"{path}: cut short or damaged ({error})") from error
    size = path.stat().st_size
    if size < end:
        raise ModelFileError(f"{path}: cut short at {size:,} bytes, its tensors end at {end:,}")


def storage_type(path: Path) -> torch.dtype:
    """How the converted weights of a GGUF file are stored; see `convert`."""
    import torch
    from gguf import GGUFReader

    matrices = [t for t in GGUFReader(path).tensors if len(t.shape) > 1]
    wide = sum(int(t.n_elements) for t in matrices if t.tensor_type.name in _WIDE)
    return torch.float32 if 2 * wide > sum(int(t.n_elements) for t in matrices) else torch.bfloat16


def refuse_partial(name: str, told: dict[str, Any]) -> None:
    """Refuse weights that a file did not bring, which transformers fills with random numbers.

    Args:
        name: for messages.
        told: what transformers gives for ``output_loading_info``; tied weights are not in it.

    Raises:
        ModelFileError: naming the first of them.
    """
    if missing := sorted(told["missing_keys"]):
        raise ModelFileError(f"{name}: {len(missing)} weights of the model are not in its files: {_some(missing)}")
    if mismatched := sorted(told["mismatched_keys"], key=str):
        shapes = [f"{key} is {list(got)}, expected {list(wanted)}" for key, got, wanted in mismatched]
        raise ModelFileError(f"{name}: {len(shapes)} weights have other shapes than the config says: {_some(shapes)}")


def _some(names: list[str]) -> str:
    return ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")


def _digest(path: Path) -> str:
    """SHA-256 of a file, from the cache folder where it was taken before and the file has not been touched."""
    found = path.resolve().stat()
    known = [str(path.resolve()), found.st_size, found.st_mtime_ns, found.st_ctime_ns]
    key = hashlib.sha256(json.dumps(known).encode()).hexdigest()[:24]
    note = cache_dir() / "gguf" / "digests" / key
    if note.is_file() and len(digest := note.read_text(encoding="ascii", errors="replace")) == 64:
        return digest
    with path.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    with contextlib.suppress(OSError):  # a cache of others: the note only saves hashing the file again
        note.parent.mkdir(parents=True, exist_ok=True)
        handle, scratch = tempfile.mkstemp(dir=note.parent)
        with os.fdopen(handle, "w", encoding="ascii") as stream_out:
            stream_out.write(digest)
        Path(scratch).chmod(0o644)
        Path(scratch).replace(note)
    return digest


def free_space(folder: Path) -> int:
    """Free bytes on the disk that holds `folder` or will."""
    while not folder.exists():
        folder = folder.parent
    return shutil.disk_usage(folder).free
