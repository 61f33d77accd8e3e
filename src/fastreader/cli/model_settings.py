"""The settings that identify a model in a file of results."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from fastreader.data.fingerprints import model_digest


def model_settings(model: str, dtype: str, precision: str, adapter: str | None = None) -> dict[str, str]:
    """Return the settings that identify a model and its adapter, without loading them.

    A path is resolved, and a digest of its files or the commit of a hub id distinguishes versions.
    """
    from fastreader.models.loading.find import adapter_commit_of, commit_of

    name, revision = _versioned(model, commit_of)
    named = {"model": name, "dtype": dtype, "precision": precision} | ({"revision": revision} if revision else {})
    if adapter is None:
        return named
    name, revision = _versioned(adapter, adapter_commit_of)
    return named | {"adapter": name} | ({"adapter_revision": revision} if revision else {})


def _versioned(name: str, commit_of: Callable[[str], str]) -> tuple[str, str]:
    """Return the name or the resolved path of a model or an adapter, and its version or ""."""
    path = Path(name).expanduser()
    if path.exists():
        return str(path.resolve()), model_digest(path)
    return name, commit_of(name)
