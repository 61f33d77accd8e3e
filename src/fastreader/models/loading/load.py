"""Load a model and its tokenizer in four steps: find, decide, read, place."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from fastreader.core.lazy import cached_property
from fastreader.core.progress import note
from fastreader.data.fingerprints import reader_name
from fastreader.errors import InputError
from fastreader.models.gguf.weights import formats_of, quantised_types, unpacked
from fastreader.models.loading.decide import Decision, decide
from fastreader.models.loading.find import find
from fastreader.models.loading.options import LoadOptions
from fastreader.models.loading.read import Contents, read, require_relevance
from fastreader.models.loading.relevance import RelevanceScheme
from fastreader.models.loading.revision import (
    gguf_digested_meanwhile,
    kept_vocabulary_digest,
    kept_weights_digest,
    parts_of_revision,
    revision_with,
    weights_digest,
)
from fastreader.models.loading.sizes import Need, naming_shortage, require_fit
from fastreader.models.machine.arithmetic import Arithmetic
from fastreader.models.machine.devices import check_map, devices_of
from fastreader.models.rewriting import quantised, surgery
from fastreader.models.rewriting.device_hooks import settled


@dataclass(frozen=True)
class Loaded:
    """A model ready to run.

    Attributes:
        model: the transformers model of text, on its devices.
        tokenizer: of the model.
        arithmetic: device, storage type and products, and why.
        name: of the reader in results.
        known_digest: of weights, configuration and tokenizer, or a function that waits for it.
        packaged: whether the name alone fixes the digest.
        given: whether the model is the caller's object.
        relevance: how it scores a query with a document; None if it is no reranker.
        need: the memory that the load takes, if it was known before.
    """

    model: Any
    tokenizer: Any
    arithmetic: Arithmetic
    name: str
    known_digest: str | Callable[[], str]
    packaged: bool
    given: bool
    relevance: RelevanceScheme | None = None
    need: Need | None = None

    @cached_property
    def digest(self) -> str:
        """Of weights, configuration and tokenizer."""
        return self.known_digest if isinstance(self.known_digest, str) else self.known_digest()


def require_loadable(options: LoadOptions) -> None:
    """Check all of a model that is known before its weights are read.

    Raises:
        FastreaderError: as `load`.
    """
    found = find(options)
    require_fit(found, decide(found))
    require_relevance(found)


def load(options: LoadOptions) -> Loaded:
    """Load what the options name. Errors are documented at `find`, `decide`, `read` and `place`."""
    found = find(options)
    decision = decide(found)
    wanted = require_fit(found, decision)
    note("reading weights")
    with naming_shortage(found.source, wanted), gguf_digested_meanwhile(found) as digests:
        contents = read(found, decision)
        note("naming weights by their values")
        if found.kind == "pair":
            weights: str | Callable[[], str] = weights_digest(contents.text)
        else:
            weights = kept_weights_digest(contents.text, found, decision, digests)
        vocabulary = kept_vocabulary_digest(contents.tokenizer, found, digests)
        digest = _digest(contents, weights, parts_of_revision(contents.text, contents.tokenizer, vocabulary))
        model, arithmetic = place(contents, decision, found.options.device_map)
    if found.file is not None and (kinds := unpacked(found.file)):
        # Without integers in memory, kernels multiply none of the file's types.
        arithmetic = replace(arithmetic, unpacked=kinds if arithmetic.formats else quantised_types(found.file))
    name = found.name or _name_of(model)
    packaged = found.kind == "packaged" and found.adapter is None
    given = found.kind == "pair"
    return Loaded(model, contents.tokenizer, arithmetic, name, digest, packaged, given, contents.relevance, wanted)


def _digest(contents: Contents, weights: str | Callable[[], str], parts: list[Any]) -> str | Callable[[], str]:
    """Return the digest of all that was read, or a function that waits for the digest of the weights."""

    def whole(known: str) -> str:
        found = revision_with(parts, known)
        return found if contents.relevance is None else contents.relevance.digest(found)

    if isinstance(weights, str):
        return whole(weights)
    waiting = weights
    return lambda: whole(waiting())


def _name_of(model: Any) -> str:
    """Return the name of a given model: what it was loaded from, or its class."""
    name = getattr(model, "name_or_path", "")
    return reader_name(name) if name else type(model).__name__


def place(contents: Contents, decision: Decision, device_map: Any) -> tuple[Any, Arithmetic]:
    """Return a text model where it runs, and its arithmetic.

    A given model is left as it is; with another `dtype` it is copied. Quantised weights are where they were read.

    Raises:
        InputError: if a device map leaves out a part of the model, or names a device that is missing.
        UnsupportedModelError: if a device map splits a layer.
    """
    model, arithmetic = contents.text, decision.arithmetic
    scheme = quantised.method(model)
    if decision.reads == "pair":
        model = model if arithmetic.dtype == model.dtype else _converted(model, arithmetic.dtype)
    elif decision.reads != "integers" and not scheme:
        if device_map is None:
            model = model.to(arithmetic.device)
        else:
            of_text = _renamed(device_map, contents.whole, model)
            model = _spread(model, of_text, type(contents.whole).__name__)
    formats = (scheme,) if scheme else formats_of(model) if decision.reads == "integers" else ()
    several = devices_of(model)
    return model, replace(arithmetic, formats=formats, devices=several if len(several) > 1 else ())


def _converted(model: Any, dtype: torch.dtype) -> Any:
    """Return a copy with weights, and factors such as Gemma's on embeddings, in another type."""
    converted: dict[int, Any] = {
        id(p): nn.Parameter(p.detach().to(dtype), requires_grad=p.requires_grad)
        for p in model.parameters()
        if p.is_floating_point()
    }
    for buffer in model.buffers():
        if buffer.is_floating_point() and buffer.dim() == 0:  # a factor, which loading rounds to the weights' type
            converted[id(buffer)] = buffer.to(dtype)
    copied = copy.deepcopy(model, converted)
    copied.config.dtype = dtype
    return copied


def _renamed(device_map: Any, whole: Any, text: Any) -> Any:
    """Return a map of a whole model with the names that modules have in its text model.

    Modules that the text model lacks are left out. A map by name, and one for the text model, are returned unchanged.
    """
    own = {module: name for name, module in text.named_modules()}
    if text is whole or isinstance(device_map, str) or set(device_map) <= set(own.values()):
        return device_map
    named = dict(whole.named_modules())
    found: dict[str, Any] = {}

    def add(module: nn.Module, device: Any) -> None:
        if module in own:
            found[own[module]] = device
        else:
            for child in module.children():
                add(child, device)

    for name, device in sorted(device_map.items(), key=lambda item: len(item[0])):
        if name in named:
            add(named[name], device)
        else:
            found[name] = device
    return found


def _spread(model: Any, device_map: Any, name: str) -> Any:
    """Return a model, which is used up, with its parts where a map puts them.

    Args:
        model: a transformers model on the CPU.
        device_map: as `Reader.load` takes it; a name lets accelerate choose by the free memory of each device.
    """
    from accelerate import infer_auto_device_map
    from accelerate.utils import (
        check_device_map,
        find_tied_parameters,
        get_balanced_memory,
        retie_parameters,
        set_module_tensor_to_device,
    )

    if isinstance(device_map, str):
        units = list(surgery.unsplit_classes(model))
        memory = None
        if device_map != "sequential":
            low = device_map == "balanced_low_0"
            memory = get_balanced_memory(model, no_split_module_classes=units, low_zero=low)
        device_map = infer_auto_device_map(model, memory, no_split_module_classes=units)
        check_map(device_map)
    try:
        check_device_map(model, device_map)
        tied = find_tied_parameters(model)
        for part, device in sorted(device_map.items(), key=lambda item: len(item[0])):
            module = model
            for attribute in filter(None, part.split(".")):
                module = getattr(module, attribute)
            if isinstance(module, nn.Module):
                module.to(device)
            else:
                set_module_tensor_to_device(model, part, device)
        retie_parameters(model, tied)
    except (ValueError, AttributeError) as error:
        raise InputError(f"device_map: expected one for {name}, got {dict(device_map)}: {error}") from error
    return settled(model, name)
