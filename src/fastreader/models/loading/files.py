"""Read a model's files by transformers' loaders, and name those that are damaged or missing."""

from __future__ import annotations

import errno
import json
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import torch

from fastreader.core.progress import silence_progress_bars
from fastreader.errors import (
    FastreaderError,
    ModelFileError,
    ModelNotFoundError,
    OutOfBudgetError,
    UnsupportedModelError,
)
from fastreader.models.config.facts import rope_kinds
from fastreader.models.gguf.weights import first
from fastreader.models.loading import packaged

T = TypeVar("T")
TOKENIZERS = ("tokenizer.json", "vocab.json", "vocab.txt", "tekken.json", "*.model", "*.model.v*", "*.tiktoken")
_SHARDS = ("model-*-of-*.safetensors", "pytorch_model-*-of-*.bin")
_POINTER, _POINTER_BYTES = b"version https://git-lfs.github.com/spec/", 1024
_NO_MEMORY = "DefaultCPUAllocator"  # PyTorch's, which raises RuntimeError
_WEIGHTS = ("model.safetensors", "pytorch_model.bin")


def parsed(file: Path) -> dict[str, Any]:
    """Return the object in a JSON file, or raise ModelFileError if it is damaged."""
    values = _json(file)
    if not isinstance(values, dict):
        raise ModelFileError(f"{file}: damaged; expected an object, got {type(values).__name__}")
    return values


def parsed_objects(file: Path) -> list[dict[str, Any]]:
    """Return the list of objects in a JSON file, or raise ModelFileError if it is damaged."""
    values = _json(file)
    if not isinstance(values, list) or not all(isinstance(value, dict) for value in values):
        raise ModelFileError(f"{file}: damaged; expected a list of objects, got {type(values).__name__}")
    return values


def _json(file: Path) -> Any:
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ModelFileError(f"{file}: damaged or truncated ({error})") from error


def has_tokenizer(folder: Path) -> bool:
    """Return whether a folder holds a tokenizer's file."""
    return any(next(folder.glob(pattern), None) for pattern in TOKENIZERS)


def shards_of(folder: Path) -> list[str]:
    """Return the names of a folder's files with parts of a model's weights."""
    return [path.name for pattern in _SHARDS for path in sorted(folder.glob(pattern))]


def has_weights(folder: Path) -> bool:
    """Return whether a folder holds a model's weights, or an index of them."""
    names = (name + suffix for name in _WEIGHTS for suffix in ("", ".index.json"))
    return any((folder / name).is_file() for name in names) or bool(shards_of(folder))


def reject_pointers(folder: Path) -> None:
    """Raise ModelFileError if a file of a folder is a pointer of Git LFS, left by a clone without git-lfs."""
    for path in sorted(folder.iterdir()):
        if path.is_file() and path.stat().st_size < _POINTER_BYTES:
            with path.open("rb") as stream:
                if stream.read(len(_POINTER)) == _POINTER:
                    raise ModelFileError(f"{path}: a Git LFS pointer, not the file itself; run `git lfs pull` there")


def missing_files(folder: Path) -> list[str]:
    """Return the weights and tokenizer files that a model folder lacks, in words."""
    missing: list[str] = []
    for name in _WEIGHTS:
        index = folder / f"{name}.index.json"
        if (folder / name).is_file():
            break
        if index.is_file():
            parts = parsed(index).get("weight_map")
            if not isinstance(parts, dict) or not all(isinstance(part, str) for part in parts.values()):
                raise ModelFileError(f"{index}: damaged; it has no weight_map of file names")
            missing += [part for part in sorted(set(parts.values())) if not (folder / part).is_file()]
            break
    else:
        if shards := shards_of(folder):
            index_of = _WEIGHTS[0] if shards[0].endswith(".safetensors") else _WEIGHTS[1]
            missing.append(f"{index_of}.index.json, which says what its {len(shards)} files of weights hold")
        else:
            missing.append(f"its weights ({' or '.join(_WEIGHTS)})")
    if not has_tokenizer(folder):
        missing.append(f"its tokenizer ({', '.join(TOKENIZERS)})")
    return missing


def unknown(name: str) -> str:
    """Return the message about a name that nothing has."""
    return (
        f"{name}: not a folder, a GGUF file, a packaged model ({', '.join(packaged.PACKAGED)}) "
        "or a model that the hub returned."
    )


def guarded(action: Callable[[], T], name: str, *, quantised: bool = False) -> T:
    """Run a transformers loader, and raise fastreader's errors for damaged, missing or unsupported files.

    Odd values in a config or a tokenizer's file raise errors of many types, also plain Exception.

    Args:
        action: the loader.
        name: what it reads, for messages.
        quantised: whether it reads quantised weights, which may need a package or a device that is not here.
    """
    try:
        with silence_progress_bars():
            return action()
    except (torch.OutOfMemoryError, MemoryError, FastreaderError):
        raise
    except Exception as error:
        raise_if_memory(error, name)
        raise _translated(error, name, quantised) from error


def guarded_build(action: Callable[[], T], name: str, config: Any, *, quantised: bool = False) -> T:
    """Run a loader that makes a model of a config as `guarded` does, and name a rotary embedding that is unknown."""
    try:
        return guarded(action, name, quantised=quantised)
    except ModelFileError as error:
        kinds = rope_kinds(config.get_text_config())
        if isinstance(error.__cause__, KeyError) and (unknown_kinds := kinds & set(error.__cause__.args)):
            message = f"{name}: transformers has no rotary embedding of the rope_type {min(unknown_kinds)!r}"
            raise UnsupportedModelError(message) from error
        raise


def _translated(error: Exception, name: str, quantised: bool) -> FastreaderError:
    from safetensors import SafetensorError

    damaged = (SafetensorError, json.JSONDecodeError, UnicodeDecodeError, EOFError, pickle.UnpicklingError)
    broken = any(isinstance(each, damaged) for each in _chain(error))  # in a config's JSON, inside an OSError
    if isinstance(error, OSError) and not broken:
        reason = f"{name}: the model is incomplete." if Path(name).is_dir() else unknown(name)
        return ModelNotFoundError(f"{reason} transformers said: {error}")
    if quantised and isinstance(error, (ImportError, ValueError, RuntimeError, AssertionError)):
        return UnsupportedModelError(f"{name}: its quantised weights cannot be loaded here: {error}")
    if isinstance(error, ValueError) and "trust_remote_code" in str(error):
        return UnsupportedModelError(
            f"{name}: needs code that it brings; read that code, then load with trust_remote_code=True"
        )
    if isinstance(error, (ValueError, ImportError)) and not broken:
        return UnsupportedModelError(f"{name}: transformers cannot load it: {error}")
    return ModelFileError(
        f"{name}: a model file is damaged, truncated or of another kind ({type(error).__name__}: {error})"
    )


def raise_if_memory(error: BaseException, name: str) -> None:
    """Raise OutOfBudgetError if an error, or what it was raised from, is a lack of the CPU's memory."""
    if lacks_memory(error):
        raise OutOfBudgetError(f"{name}: the model does not fit in memory ({error})") from error


def lacks_memory(error: BaseException) -> bool:
    """Return whether an error, or what it was raised from, is a lack of the CPU's memory."""
    return any(
        isinstance(each, MemoryError) or _NO_MEMORY in str(each) or getattr(each, "errno", None) == errno.ENOMEM
        for each in _chain(error)
    )


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and its causes."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def check_loading_info(name: str, loading_info: dict[str, Any]) -> None:
    """Raise ModelFileError if files lack weights by transformers' `loading_info`, which has no tied weights.

    transformers fills missing weights with random numbers.
    """
    if missing := sorted(loading_info["missing_keys"]):
        raise ModelFileError(f"{name}: {len(missing)} weights of the model are not in its files: {first(missing)}")
    if mismatched := sorted(loading_info["mismatched_keys"], key=str):
        shapes = [f"{key} is {list(got)}, expected {list(wanted)}" for key, got, wanted in mismatched]
        raise ModelFileError(f"{name}: {len(shapes)} weights differ in shape from the config: {first(shapes)}")
