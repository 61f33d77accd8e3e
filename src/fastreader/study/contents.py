"""Fingerprints of all that a run depends on besides its study: questions, files, and calibrations that MoI finds."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fastreader.core.checks import require
from fastreader.data import Example
from fastreader.data.fingerprints import digest, model_digest
from fastreader.eor.sources import source_digest
from fastreader.eor.voter import saved_similarities
from fastreader.moi.calibration.store import at_hand
from fastreader.study.config import Study, model_of
from fastreader.study.measures.registry import READERS
from fastreader.study.methods.reading import template_of

FILES = "files.json"
_MEASURE = "measure "  # begins the place of a measure's model
CALIBRATIONS = "calibrations.json"
Found = dict[str, str]


def require_same_study(same: bool, folder: Path, difference: str) -> None:
    """Raise InputError with the `difference` unless the run in `folder` is of the `same` study."""
    require(same, f"{folder}: holds a run of another study: {difference}")


def example_digest(example: Example, *more: Any) -> str:
    """Return a digest of a question, its passages and right answers, and of `more`."""
    passages = [[p.title, p.text, p.score, p.is_gold, p.has_answer] for p in example.passages]
    return digest([example.question, example.answers, passages, *more])


def named_files(study: Study) -> dict[str, str]:
    """Return the files that answers depend on, by their place in the study.

    The questions are not included: every row has a digest of its question.
    """
    files = {
        "template": study.template,
        "noise.random": None if study.noise.random in ("others", "words") else study.noise.random,
        "moi.bias": study.moi.get("bias"),
        **{f"eor.sources.{name}": file for name, file in study.eor.sources.items()},
        **{f"{method.label}: bias": method.options.get("bias") for method in study.methods},
        **_named_models(study),
    }
    return {key: file for key, file in files.items() if file is not None}


def _readers(study: Study) -> dict[str, str]:
    """Return the names of the readers that answers depend on, by their place in the study."""
    named = {f"reader {name}": name for name in study.readers}
    for method in study.methods:
        stages = {**(study.sure.get("readers") or {}), **(method.options.get("readers") or {})}
        for key, name in {"model": method.options.get("model"), **stages}.items():
            if name:
                named[f"{method.label}: {key}"] = name
    return named


def _judges(study: Study) -> dict[str, str]:
    """Return the models that the study's measures and similarities name, by their place in the study."""
    named = {}
    for measure in study.measured:
        kind, _, model = measure.partition(":")
        judge, _, name = model.partition(":")
        if kind in READERS or judge == "reader":
            named[_MEASURE + measure] = model_of(study, model if kind in READERS else name).model
        elif name:
            named[_MEASURE + measure] = name
    voters = [study.eor.similarities, *(method.options.get("similarities", ()) for method in study.methods)]
    if study.eor.voter is not None:
        voters.append(saved_similarities(study.eor.voter))
    for similarity in {name for names in voters for name in names}:
        kind, _, name = similarity.partition(":")
        if kind in ("bertscore", "nli"):
            named[f"similarity {similarity}"] = name
    return named


def _named_models(study: Study) -> dict[str, str]:
    """Return the models in files by their place in the study, without packaged ones and hub ids."""
    named = {key: model_of(study, name).model for key, name in _readers(study).items()} | _judges(study)
    named |= {f"models.{name}.adapter": config.adapter or "" for name, config in study.models.items()}
    return {key: name for key, name in named.items() if name and Path(name).expanduser().exists()}


def require_same_models(folder: Path, before: Study, now: Study) -> None:
    """Check that the readers of a run are loaded as they were. Tables of others, such as judges, may be added."""
    judges = {name.rpartition(":")[2] for name in before.measured}
    for name in sorted({*before.models, *_readers(before).values(), *judges}):
        was, own = model_of(before, name).model_dump(mode="json"), model_of(now, name).model_dump(mode="json")
        difference = f"the reader {name} was {json.dumps(was)}, is now {json.dumps(own)}"
        require_same_study(was == own, folder, difference)


def finds_calibrations(study: Study, name: str) -> bool:
    """Return whether methods look up calibrations of the reader of a name: one that is compared, or that ranks."""
    ranks = any(
        method.method.partition(":")[0] in ("moi", "order", "arrange") and method.options.get("model") == name
        for method in study.methods
    )
    return ranks or name in study.readers


def contents(study: Study) -> Found:
    """Return a digest of each of `named_files`."""
    models, readers = _named_models(study), {f"reader {name}" for name in study.readers}
    digests = {key: model_digest(path, below=key not in readers) for key, path in models.items()}
    return {key: digests[key] if key in digests else source_digest(file) for key, file in named_files(study).items()}


def _shared(before: Study, kept: Mapping[str, Any], files: Mapping[str, str]) -> list[str]:
    """Return the places of files that what is in a run's folder rests on, of those that a study names now.

    The values of a measure that a study left out and has again are still in the folder.
    """
    measured = {key for key in kept if key.startswith(_MEASURE)}
    return sorted((named_files(before).keys() | measured) & files.keys())


def check_contents(
    folder: Path, before: Study, kept: Mapping[str, Any] | None, now: Study, found: Mapping[str, str]
) -> None:
    """Check that the files of a run still hold what they held when it began.

    Args:
        folder: of the run.
        before, kept: the study in the folder and its `contents`; None if the folder has no contents.
        now, found: the study that resumes the run and its `contents`.
    """
    files = named_files(now)
    shared = _shared(before, kept or {}, files)
    vouched = json.dumps({key: found[key] for key in shared})
    for key in shared:
        require(
            (kept or {}).get(key) is not None,
            f"{folder}: the run keeps only the path of {key}, which does not show whether {files[key]} has changed; "
            f"name a new folder, or, if you know that it has not, write {vouched} into {folder / FILES}",
        )
        require_same_study((kept or {})[key] == found[key], folder, f"{key}: {files[key]} has changed")


def calibrations(study: Study, about: Mapping[str, str]) -> Found | None:
    """Return the digests of the calibrations that methods of a study may find, by file name.

    Args:
        study: the study.
        about: the reader, as `Reader.describe` returns it.

    Returns:
        None if every method is given its calibration or uses none.
    """
    return at_hand(about, template_of(study).digest()) if _finds(study, "moi", "order", "arrange") else None


def check_calibrations(folder: Path, study: Study, reader: str, before: Found, now: Found) -> None:
    """Check that no calibration changed, and that none appeared that MoI would use instead of the retriever's order.

    Args:
        folder, study: the run and the study that resumes it.
        reader: the reader's name in the study.
        before: `calibrations` when the reader gave its first answer.
        now: those found now.
    """
    # an order that lacked a calibration failed, and runs again; MoI and arrange answer by what they find
    names = before.keys() | now.keys() if _finds(study, "moi", "arrange") else before.keys()
    for name in sorted(names):
        change = "is new" if name not in before else "is gone" if name not in now else "has changed"
        difference = f"the calibration {name} of {reader} {change}; name a new folder, or restore the calibration"
        require_same_study(before.get(name) == now.get(name), folder, difference)


def _finds(study: Study, *families: str) -> bool:
    """Return whether a method of these families looks for a calibration because it is given none."""
    given = study.moi.get("bias")
    return any(
        method.method.partition(":")[0] in families and not (given or method.options.get("bias"))
        for method in study.methods
    )
