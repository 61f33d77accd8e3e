"""From what the user names to a model and its tokenizer."""

from __future__ import annotations

import copy
import json
import os
from pathlib import Path
from typing import Any

import torch

from fastreader.errors import InputError, ModelFileError, ModelNotFoundError
from fastreader.models import gguf, packaged
from fastreader.models.precision import Arithmetic, resolve
from fastreader.models.quiet import no_bars


def load(
    model: str | os.PathLike[str], device: str | torch.device, dtype: str | torch.dtype, precision: str
) -> tuple[Any, Any, Arithmetic]:
    """Load a model by name.

    A path that exists is a folder or a GGUF file; otherwise a packaged name (pulled when it is not cached);
    otherwise a hub id, looked up in the local hub cache first and online only when it is not there.

    Returns:
        (transformers model on its device, tokenizer, how it computes)

    Raises:
        ModelNotFoundError: nothing of that name.
        ModelFileError: a file is damaged or cut short.
    """
    import transformers

    folder, local = _locate(model)
    config = _read(lambda: transformers.AutoConfig.from_pretrained(folder, local_files_only=local), folder)
    arithmetic = resolve(device, dtype, precision, _checkpoint_dtype(config))
    loaded = _read(
        lambda: transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=arithmetic.dtype, local_files_only=local
        ),
        folder,
    )
    tokenizer = _read(lambda: transformers.AutoTokenizer.from_pretrained(folder, local_files_only=local), folder)
    return loaded.to(arithmetic.device), tokenizer, arithmetic


def borrow(model: Any, device: str | torch.device, dtype: str | torch.dtype, precision: str) -> tuple[Any, Arithmetic]:
    """A caller's own model, used where it is and as it is; copied only when another type is asked for.

    Returns:
        (the model or a converted copy of it, how it computes)

    Raises:
        InputError: `device` names another device than the model's.
    """
    own_dtype, own_device = model.dtype, model.device
    arithmetic = resolve(own_device if device == "auto" else device, dtype, precision, own_dtype)
    if arithmetic.device.type != own_device.type:
        raise InputError(f"device: the model given is on {own_device}, got {device!r}; move it, or leave 'auto'")
    if arithmetic.dtype != own_dtype:
        model = copy.deepcopy(model).to(arithmetic.dtype)
    return model, arithmetic


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
    if name in packaged.PACKAGED:
        return str(packaged.pull(name)), True
    if name.count("/") > 1 or name.startswith((".", "~", "/")) or name.endswith(".gguf"):
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


def _complete(snapshot: Path) -> bool:
    """Whether a hub snapshot holds weights and tokenizer, so that nothing need be asked of the network."""
    index = snapshot / "model.safetensors.index.json"
    sharded = index.is_file()
    shards = set(json.loads(index.read_text())["weight_map"].values()) if sharded else {"model.safetensors"}
    tokenizer = any((snapshot / n).is_file() for n in ("tokenizer.json", "tokenizer.model", "vocab.json"))
    return tokenizer and all((snapshot / shard).is_file() for shard in shards)


def _read(action: Any, name: str) -> Any:
    """Run a transformers loader and turn what a damaged or missing file raises into our errors."""
    from safetensors import SafetensorError

    try:
        with no_bars():
            return action()
    except (SafetensorError, json.JSONDecodeError, EOFError) as error:
        raise ModelFileError(f"{name}: a model file is damaged or cut short ({error})") from error
    except OSError as error:
        raise ModelNotFoundError(f"{_unknown(name)} transformers said: {error}") from error


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
