"""Find models and adapters on the hub: first in its local cache, and online only if they are not there."""

from __future__ import annotations

import socket
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import getproxies

from fastreader.errors import ModelNotFoundError
from fastreader.models.loading.files import TOKENIZERS, guarded, missing_files, unknown
from fastreader.models.loading.packaged import is_packaged

_ADAPTER_FILES = ["adapter_*", *TOKENIZERS, "tokenizer_config.json", "special_tokens_map.json", "*.jinja"]


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
