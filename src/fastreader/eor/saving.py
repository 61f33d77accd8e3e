"""Voters as JSON. Similarities go by name, with the settings their scores depend on, which loading compares."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from fastreader.eor import weights
from fastreader.eor.answer import is_answer
from fastreader.eor.fit import FitReport
from fastreader.eor.similarity import SimilarityLike
from fastreader.errors import InputError

if TYPE_CHECKING:
    from fastreader.eor.voter import Voter

V = TypeVar("V", bound="Voter")

Accept = Callable[[str | None], bool]


def voter_values(voter: Voter) -> dict[str, Any]:
    """Parameters, similarities and what was learned, as JSON values."""
    plain = {k: v for k, v in voter.get_params().items() if k not in ("similarities", "accept")}
    for name in ("retriever_weights", "similarity_weights"):
        value = plain[name]
        if value is not None:
            mapped = isinstance(value, Mapping)
            plain[name] = {k: float(w) for k, w in value.items()} if mapped else [float(w) for w in value]
    # a search over parameters sets NumPy's numbers, which JSON does not take
    plain = {k: v.item() if isinstance(v, np.generic) else v for k, v in plain.items()}
    measures = voter.resolved()
    out: dict[str, Any] = {
        "similarities": [s.name for s in measures],
        "similarity_settings": [s.settings() for s in measures],
        "accept": None if voter.accept is is_answer else _name(voter.accept),
        "parameters": plain,
    }
    if hasattr(voter, "retriever_weights_"):
        out["fitted"] = {
            "retrievers": voter.retrievers_,
            "retriever_weights": voter.retriever_weights_.tolist(),
            "similarity_weights": voter.similarity_weights_.tolist(),
            "report": voter.fit_report_.to_dict() if voter.fit_report_ else None,
        }
    return out


def make_voter(
    kind: type[V],
    values: Mapping[str, Any],
    similarities: Sequence[SimilarityLike] | None,
    accept: Accept | None,
) -> V:
    """The voter of `voter_values`; as `Voter.from_dict`."""
    try:
        expected, settings = list(values["similarities"]), list(values["similarity_settings"])
        if values["accept"] is not None and accept is None:
            raise InputError(f"accept: the voter was saved with {values['accept']}; give it to load the voter")
        given = expected if similarities is None else list(similarities)
        voter = kind(given, accept=accept or is_answer, **values["parameters"])
        _check_similarities(voter, expected, settings)
        if fitted := values.get("fitted"):
            retrievers, found = fitted["retrievers"], fitted["retriever_weights"]
            count = len(found if retrievers is None else retrievers)
            voter.retriever_weights_ = weights.checked(found, count, "retriever_weights")
            voter.similarity_weights_ = weights.checked(
                fitted["similarity_weights"], len(expected), "similarity_weights"
            )
            voter.retrievers_ = None if retrievers is None else [str(name) for name in retrievers]
            report = fitted.get("report")
            voter.fit_report_ = FitReport(**report) if report else None
        return voter
    except (KeyError, TypeError) as error:
        raise InputError(f"Voter.from_dict: {error!r} in values with the keys {sorted(values)}") from error


def _check_similarities(voter: Voter, names: list[str], settings: list[Any]) -> None:
    having = voter.resolved()
    if len(settings) != len(names):
        raise InputError(f"similarity_settings: expected one for each of {', '.join(names)}, got {len(settings)}")
    if [s.name for s in having] != names:
        raise InputError(f"similarities: expected {', '.join(names)}, got {', '.join(s.name for s in having)}")
    for similarity, expected in zip(having, settings, strict=True):
        if (found := similarity.settings()) != expected:
            raise InputError(
                f"similarities: {similarity.name} was saved with {json.dumps(expected)}, and would be loaded with "
                f"{json.dumps(found)}; give it as an object, made as it was"
            )


def save(voter: Voter, path: str | os.PathLike[str]) -> None:
    """Write as JSON, all of it or nothing."""
    target = Path(path)
    scratch = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        scratch.write_text(json.dumps(voter_values(voter), indent=2, allow_nan=False) + "\n", encoding="utf-8")
        scratch.replace(target)
    finally:
        scratch.unlink(missing_ok=True)


def read(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The values in a file that `save` wrote.

    Raises:
        InputError: not such a file.
    """
    try:
        values = json.loads(Path(path).read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: not JSON ({error})") from error
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from error
    if not isinstance(values, dict):
        raise InputError(f"{path}: expected a JSON object, got {type(values).__name__}")
    return values


def names(values: Mapping[str, Any]) -> tuple[str, ...]:
    """The similarities' names in what `voter_values` gave.

    Raises:
        InputError: it is something else.
    """
    found = values.get("similarities")
    if not isinstance(found, list) or not isinstance(values.get("parameters"), dict):
        raise InputError(f"Voter: expected similarities and parameters, got the keys {sorted(values)}")
    return tuple(map(str, found))


def _name(function: Accept) -> str:
    return getattr(function, "__qualname__", type(function).__qualname__)
