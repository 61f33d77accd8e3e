"""Convert a GGUF file, once, to a folder that loads fast."""

from __future__ import annotations

import importlib.util
import logging
import shutil
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from fastreader.core.progress import silence_progress_bars
from fastreader.data.files import building, cache_dir, write_json
from fastreader.data.fingerprints import kept_file_digest
from fastreader.errors import MissingExtraError, ModelFileError, UnsupportedModelError

if TYPE_CHECKING:
    import torch

logger = logging.getLogger(__name__)

_MAGIC = b"GGUF"
_FLOAT_TYPES = ("F16", "F32", "F64")
_STRING, _ARRAY = 8, 9
_WIDTHS = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}  # bytes of the other types of values
BLOCKS = "blocks.safetensors"  # the integers, which `gguf_weights.write` adds
_WEIGHTS, _INDEX = "model.safetensors", "model.safetensors.index.json"
CONVERSION = 5  # version of the conversion; folders of older versions are not used


def converted(path: Path) -> Path:
    """Return the folder with the contents of the GGUF file at `path`, which is converted if that was never done.

    The folder is named after the file's SHA-256, so a changed file is converted again. The SHA-256 is cached under the
    file's path, size and times, so a file is hashed once as long as these stay the same.

    Raises:
        MissingExtraError: if `gguf` is not installed.
        ModelFileError: if the file is not GGUF or is truncated.
    """
    check_magic(path)  # before the whole file is read for its digest
    target = cache_dir() / "gguf" / f"{kept_file_digest(path)[:24]}-{CONVERSION}"
    with building(target) as making:
        if making is not None:
            logger.warning("converting %s once; this takes about 20 seconds for 135M parameters", path.name)
            convert(path, making)
        else:
            add_index(target)
    return target


def check_extra() -> None:
    """Raise MissingExtraError if a package that conversion needs is not installed."""
    if importlib.util.find_spec("gguf") is None:
        raise MissingExtraError("gguf", "gguf")


def convert(path: Path, folder: Path) -> None:
    """Write the model and tokenizer of a GGUF file to `folder`: safetensors, config, tokenizer.

    Quantised and BF16 files become bfloat16. A file with most weights in F16, F32 or F64 becomes float32, which keeps
    every bit of the first two. Quantised weights are written with their integers, too
    (`gguf_weights`).

    Raises:
        MissingExtraError: if `gguf` is not installed.
        UnsupportedModelError: if transformers cannot read this architecture from GGUF.
        ModelFileError: if the file is not GGUF, is truncated, or lacks some of the model's weights.
    """
    check_extra()
    check_complete(path)
    import torch
    import transformers

    from fastreader.models.gguf.tokenizer import ends_of, tokenizer_of
    from fastreader.models.loading import gguf_weights

    metadata = read_metadata(path)
    tokenizer = tokenizer_of(metadata, str(path))  # first, because it may be refused
    source = {"pretrained_model_name_or_path": str(path.parent), "gguf_file": path.name, "local_files_only": True}
    source["trust_remote_code"] = False
    with silence_progress_bars():
        try:
            dequantised, loading_info = transformers.AutoModelForCausalLM.from_pretrained(
                dtype=torch.float32, output_loading_info=True, **source
            )
        except ValueError as error:  # an architecture transformers cannot read from GGUF
            raise UnsupportedModelError(f"{path}: transformers cannot load it: {error}") from error
        check_loading_info(str(path), loading_info)
        config = dequantised.config
        # transformers leaves the GGUF quantisation on the config, which then cannot be saved.
        if hasattr(config, "quantization_config"):
            del config.quantization_config
        plain = transformers.AutoModelForCausalLM.from_config(config, dtype=storage_type(path))
        plain.load_state_dict(dequantised.state_dict())
        plain.generation_config.eos_token_id = ends_of(metadata, str(path)) or None
        plain.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    gguf_weights.write(path, dequantised, folder / BLOCKS)
    add_index(folder)
    # save_pretrained makes the weights readable by their owner only; others read a shared cache.
    for file in folder.iterdir():
        file.chmod(0o644)


def check_magic(path: Path) -> None:
    """Raise ModelFileError if a file does not start as a GGUF file does."""
    with path.open("rb") as stream:
        magic = stream.read(4)
    if magic != _MAGIC:
        raise ModelFileError(f"{path}: not a GGUF file (it starts with {magic!r}, expected {_MAGIC!r})")


def check_counts(path: Path) -> None:
    """Raise ModelFileError if a count in the header exceeds the file, with which GGUFReader would run for hours.

    The header: magic, version, numbers of tensors and of keys; keys with their values; names and shapes of tensors.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        file.seek(4)
        order: Literal["little", "big"] = "little" if int.from_bytes(file.read(4), "little") < 2**16 else "big"

        def number(width: int = 8) -> int:
            return int.from_bytes(file.read(width), order)

        def skip(count: int, width: int) -> None:
            left = size - file.tell()
            if count * width > left:
                raise ModelFileError(f"{path}: truncated or damaged ({count:,} items announced, {left:,} bytes left)")
            file.seek(count * width, 1)

        def value(kind: int, depth: int = 0) -> None:
            if kind == _STRING:
                skip(number(), 1)
            elif kind == _ARRAY and depth < 8:
                inner, count = number(4), number()
                if inner in _WIDTHS:
                    skip(count, _WIDTHS[inner])
                    return
                for _ in range(count):
                    if file.tell() >= size:
                        raise ModelFileError(f"{path}: truncated or damaged (an array of {count:,} items ends early)")
                    value(inner, depth + 1)
            elif kind in _WIDTHS:
                skip(1, _WIDTHS[kind])
            else:
                raise ModelFileError(f"{path}: truncated or damaged (a value of type {kind})")

        tensors, keys = number(), number()
        for _ in range(keys):
            skip(number(), 1)
            value(number(4))
        for _ in range(tensors):
            skip(number(), 1)
            skip(number(4), 8)
            skip(12, 1)  # type and offset


def check_complete(path: Path) -> None:
    """Raise ModelFileError if a file is not GGUF or ends before its last tensor does."""
    from gguf import GGUFReader

    check_magic(path)
    check_counts(path)
    try:
        reader = GGUFReader(path)
        end = max((int(t.data_offset) + int(t.n_bytes) for t in reader.tensors), default=0)
    except (ValueError, IndexError, KeyError, OverflowError, TypeError, MemoryError, struct.error) as error:
        raise ModelFileError(f"{path}: truncated or damaged ({error})") from error
    size = path.stat().st_size
    if size < end:
        raise ModelFileError(f"{path}: truncated at {size:,} bytes, its tensors end at {end:,}")


def read_metadata(path: Path) -> dict[str, Any]:
    """Return the values of a GGUF file's keys.

    Raises:
        ModelFileError: if a text is not UTF-8.
    """
    from gguf import GGUFReader

    try:
        return {key: field.contents() for key, field in GGUFReader(path).fields.items()}
    except UnicodeDecodeError as error:
        raise ModelFileError(f"{path}: a text in its metadata is not UTF-8 ({error})") from error


def storage_type(path: Path) -> torch.dtype:
    """Return the type that `convert` stores the weights of a GGUF file in."""
    import torch
    from gguf import GGUFReader

    matrices = [t for t in GGUFReader(path).tensors if len(t.shape) > 1]
    floats = sum(int(t.n_elements) for t in matrices if t.tensor_type.name in _FLOAT_TYPES)
    return torch.float32 if 2 * floats > sum(int(t.n_elements) for t in matrices) else torch.bfloat16


def check_loading_info(name: str, loading_info: dict[str, Any]) -> None:
    """Raise ModelFileError if files lack weights by transformers' `loading_info`, which has no tied weights.

    transformers fills missing weights with random numbers.
    """
    if missing := sorted(loading_info["missing_keys"]):
        raise ModelFileError(f"{name}: {len(missing)} weights of the model are not in its files: {_first(missing)}")
    if mismatched := sorted(loading_info["mismatched_keys"], key=str):
        shapes = [f"{key} is {list(got)}, expected {list(wanted)}" for key, got, wanted in mismatched]
        raise ModelFileError(f"{name}: {len(shapes)} weights differ in shape from the config: {_first(shapes)}")


def _first(names: list[str]) -> str:
    return ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")


def free_space(folder: Path) -> int:
    """Return the free bytes on the disk of `folder`, which need not exist yet."""
    while not folder.exists():
        folder = folder.parent
    return shutil.disk_usage(folder).free


def has_blocks(folder: str) -> bool:
    """Return whether a model folder holds the integers of a GGUF file."""
    return (Path(folder) / BLOCKS).is_file()


def add_index(folder: Path) -> None:
    """Write an index that names the file with plain weights, if `write` added another and there is no index.

    vLLM and SGLang load every *.safetensors in a folder, and fail on that file, unless an index leaves it out. Earlier
    versions wrote no index, so a cached folder gets it when it is next used. A folder that cannot be written to, or is
    damaged, stays unchanged: this package needs no index.
    """
    if not (folder / BLOCKS).is_file() or (folder / _INDEX).is_file():
        return
    from safetensors import SafetensorError, safe_open

    weights = folder / _WEIGHTS
    try:
        with safe_open(weights, framework="numpy") as stream:
            names = sorted(stream.keys())
        index = {"metadata": {"total_size": weights.stat().st_size}, "weight_map": dict.fromkeys(names, _WEIGHTS)}
        write_json(folder / _INDEX, index, indent=2)
    except (OSError, SafetensorError) as error:
        logger.info("%s: no index written, so other programs may not load this folder: %s", folder, error)
