"""First step of loading: find out what a name, a path or a pair is, and fetch what is not here."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from fastreader.core.checks import expect
from fastreader.data.fingerprints import reader_name
from fastreader.errors import InputError, ModelNotFoundError
from fastreader.models.loading import gguf, packaged, peft_adapters, weights_index
from fastreader.models.loading.files import guarded, has_tokenizer, missing_files, parsed
from fastreader.models.loading.hub import adapter_from_hub, is_path, model_from_hub
from fastreader.models.loading.options import LoadOptions


@dataclass(frozen=True)
class Found:
    """A model that was found.

    Attributes:
        options: by which it was found.
        kind: what its name is; a "pair" has none, and only `options`.
        name: of the reader in results.
        source: the folder or hub id that transformers reads.
        config: of the model.
        adapter: folder of the adapter to merge, or None.
        tokenizer: folder or hub id of the tokenizer.
        integers: whether the folder also holds the integers of a quantised GGUF file.
        access: arguments of transformers' loaders, by which files and code may be read.
    """

    options: LoadOptions
    kind: Literal["pair", "packaged", "folder", "gguf", "hub"]
    name: str = ""
    source: str = ""
    config: Any = None
    adapter: Path | None = None
    tokenizer: str = ""
    integers: bool = False
    access: dict[str, Any] = field(default_factory=dict)


def find(options: LoadOptions) -> Found:
    """Return what the options name.

    A path that exists is a folder or a GGUF file; any other name a packaged one, or else a hub id. A folder that holds
    only an adapter names its base model.

    Raises:
        InputError: if the model is neither a name, a path nor a pair.
        ModelNotFoundError: if nothing has that name, or a folder lacks a file.
        ModelFileError: if a file is damaged.
    """
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
    local = Path(source).is_dir()
    if local:  # before transformers reads a damaged config or an incomplete folder
        parsed(Path(source) / "config.json")
        if missing := missing_files(Path(source)):
            raise ModelNotFoundError(f"{source}: the model folder lacks {', '.join(missing)}")
    # Without an answer transformers asks on standard input whether to run a folder's code.
    access = {"local_files_only": local, "trust_remote_code": options.trust_remote_code}
    return Found(
        options,
        kind,
        options.name or _name(options),
        source,
        guarded(lambda: _config(source, access), source),
        adapter,
        source if adapter is None or not has_tokenizer(adapter) else str(adapter),
        weights_index.written_in(source),
        access,
    )


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
            raise ModelNotFoundError(f"{path}: the model folder lacks a config.json")
        return "folder", str(path)
    if path.is_file():
        return "gguf", str(gguf.converted(path))
    if packaged.is_packaged(name):
        return "packaged", str(packaged.pull(name))
    if is_path(name):
        raise ModelNotFoundError(f"{name}: no such file or folder")
    return "hub", model_from_hub(name)


def _adapter_folder(adapter: Any) -> Path:
    """Return the folder of an adapter, downloaded if it is a hub id that is not cached."""
    named = isinstance(adapter, (str, os.PathLike)) and os.fspath(adapter)
    expect(bool(named), "adapter", "a folder or a hub id of a PEFT adapter, or None", adapter)
    folder, name = Path(adapter).expanduser(), os.fspath(adapter)
    if not folder.is_dir():
        if folder.exists() or is_path(name):
            raise ModelNotFoundError(f"{name}: no such folder of an adapter")
        folder = Path(adapter_from_hub(name))
    peft_adapters.check_folder(folder)
    parsed(folder / peft_adapters.CONFIG)
    return folder
