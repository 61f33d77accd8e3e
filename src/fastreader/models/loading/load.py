"""Load a model and its tokenizer in four steps: find, decide, read, place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fastreader.data.fingerprints import reader_name
from fastreader.models.loading.decide import decide
from fastreader.models.loading.find import find
from fastreader.models.loading.options import LoadOptions
from fastreader.models.loading.place import place
from fastreader.models.loading.read import read
from fastreader.models.loading.revision import revision
from fastreader.models.machine.arithmetic import Arithmetic


@dataclass(frozen=True)
class Loaded:
    """A model ready to run.

    Attributes:
        model: the transformers model of text, on its devices.
        tokenizer: of the model.
        arithmetic: device, storage type and products, and why.
        name: of the reader in results.
        digest: of weights, configuration and tokenizer.
        packaged: whether the name alone fixes the digest.
        given: whether the model is the caller's object.
    """

    model: Any
    tokenizer: Any
    arithmetic: Arithmetic
    name: str
    digest: str
    packaged: bool
    given: bool


def load(options: LoadOptions) -> Loaded:
    """Load what the options name. Errors are documented at `find`, `decide`, `read` and `place`."""
    found = find(options)
    decision = decide(found)
    contents = read(found, decision)
    digest = revision(contents.text, contents.tokenizer)
    model, arithmetic = place(contents, decision, found.options.device_map)
    name = found.name or _name_of(model)
    packaged = found.kind == "packaged" and found.adapter is None
    return Loaded(model, contents.tokenizer, arithmetic, name, digest, packaged, found.kind == "pair")


def _name_of(model: Any) -> str:
    """Return the name of a given model: what it was loaded from, or its class."""
    name = getattr(model, "name_or_path", "")
    return reader_name(name) if name else type(model).__name__
