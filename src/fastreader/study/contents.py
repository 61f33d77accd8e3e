"""What is in the files a study names: a run goes on only with the texts it began with, whatever their path says."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fastreader.data.fingerprints import file_digest, model_digest
from fastreader.errors import InputError
from fastreader.study.config import Study

FILES = "files.json"


def named_files(study: Study) -> dict[str, str]:
    """The files that answers depend on, by where the study names them.

    The questions are not among them: every row has a digest of its own question.
    """
    files = {
        "template": study.template,
        "noise.random": None if study.noise.random in ("others", "words") else study.noise.random,
        "moi.bias": study.moi.get("bias"),
        **{f"eor.sources.{name}": file for name, file in study.eor.sources.items()},
        **{f"{method.label}: bias": method.options.get("bias") for method in study.methods},
        **{f"reader {name}": name for name in study.readers if Path(name).expanduser().exists()},
    }
    return {key: file for key, file in files.items() if file is not None}


def contents(study: Study) -> dict[str, str]:
    """A digest of each of `named_files`."""
    readers = {f"reader {name}" for name in study.readers}
    files = named_files(study).items()
    return {key: model_digest(file) if key in readers else file_digest(file) for key, file in files}


def check_contents(
    folder: Path, before: Study, kept: Mapping[str, Any] | None, now: Study, found: Mapping[str, str]
) -> None:
    """Refuse to go on where a file that a run began with holds something else now.

    Args:
        folder: of the run.
        before: the study in it.
        kept: `contents` as the run keeps them; None for runs that were begun when only paths were kept.
        now: the study that is to go on.
        found: its `contents`.

    Raises:
        InputError: naming the file.
    """
    files = named_files(now)
    shared = sorted(named_files(before).keys() & files.keys())
    for key in shared:
        file, digest = files[key], (kept or {}).get(key)
        if digest is None:
            vouched = json.dumps({k: found[k] for k in shared})
            raise InputError(
                f"{folder}: the run keeps the path of {key} alone, so that nobody can tell whether {file} holds what "
                f"it held; name a new folder, or, if you know it does, write {vouched} into {folder / FILES}"
            )
        if digest != found[key]:
            raise InputError(f"{folder}: holds a run of another study: {key}: {file} holds something else now")
