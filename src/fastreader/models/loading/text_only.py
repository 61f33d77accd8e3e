"""Extract the text-only causal LM of a multimodal checkpoint, sharing its modules.

Vision and audio encoders never see a prompt of text. With them a checkpoint would run by transformers' modules as they
are, and they would take memory. The text model is compared with the whole model before it is used instead.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fastreader.errors import UnsupportedModelError
from fastreader.models.config.facts import logit_scale_of, logit_softcap_of
from fastreader.models.loading import peft_adapters
from fastreader.models.loading.files import raise_if_memory
from fastreader.models.rewriting import surgery
from fastreader.models.rewriting.draft import structural_copy

_PROBE = 12  # tokens
_MOST_APART = {torch.float64: 1e-6, torch.float32: 1e-4}  # nats of a token's log-probability; other types: 0.02


class EncoderNeededError(UnsupportedModelError, AttributeError):
    """Text runs through a part of a model that was not loaded."""


class AbsentEncoder(nn.Module):
    """A vision or audio encoder that was not loaded: text that runs through it raises EncoderNeededError."""

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError as error:
            raise EncoderNeededError(
                f"{name} of an encoder, which was not loaded, takes part in reading text"
            ) from error

    def forward(self, *_arguments: Any, **_named: Any) -> Any:
        """Raise EncoderNeededError."""
        raise EncoderNeededError("an encoder, which was not loaded, takes part in reading text")


def is_composite(config: Any) -> bool:
    """Return whether a config describes a text model among others."""
    return config.get_text_config(decoder=True) is not config


def may_have_encoders(config: Any) -> bool:
    """Return whether a config has parts, of which some may be of encoders."""
    return is_composite(config) or bool(getattr(config, "sub_configs", None))


def text_model(model: Any) -> Any:
    """Return the causal LM over the text part of a model, which shares its modules and weights.

    The model itself is returned if it is of text alone, if its text part is not a model itself, or if that gives other
    numbers than the whole model: then another part of it takes part in reading text.

    Raises:
        EncoderNeededError: if such a part was not loaded.
        UnsupportedModelError: if the whole model does not run on text alone, or leaves out a factor of its text model.
    """
    if not may_have_encoders(model.config):
        return model
    copied = structural_copy(model)  # running rewrites rotary buffers
    if (text := assembled(copied)) is None:
        if _lacks_encoders(model):
            _probed(copied, *_embedded(copied))
        return model
    embedded, most = _embedded(text), _MOST_APART.get(model.dtype, 0.02)
    whole = _probed(copied, *embedded)
    if _apart(whole, text, embedded) <= most:
        return assembled(model)
    scale, cap = logit_scale_of(text.config), logit_softcap_of(text.config)
    if (scale, cap) != (1.0, None) and _apart(whole, _unscaled(text), embedded) <= most:
        factor, bound = f"the factor {scale:g}" if scale != 1.0 else "", f"the bound {cap:g}" if cap is not None else ""
        left_out = " and ".join(filter(None, (factor, bound)))
        raise UnsupportedModelError(
            f"{type(model).__name__} leaves out {left_out} of its text model's logits, so its probabilities differ "
            f"from the text model's; give the pair of {type(text).__name__} and its tokenizer"
        )
    return model


def outside(module: nn.Module, inside: set[nn.Module], prefix: str = "") -> Iterator[str]:
    """Yield the names of the largest submodules that hold tensors and share no module with `inside`."""
    for name, child in module.named_children():
        if not inside.isdisjoint(child.modules()):
            if child not in inside:
                yield from outside(child, inside, f"{prefix}{name}.")
        elif _holds_tensors(child):
            yield prefix + name


def assembled(model: Any) -> Any:
    """Return a causal LM over a model's text modules and output embedding, or None if they are not a separate part."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

    if model.config.is_encoder_decoder:
        return None
    headless = model.get_output_embeddings() is None
    if not is_composite(model.config):
        return None if headless else _lightened(model)
    config = model.config.get_text_config(decoder=True)
    text = _held(model, config)
    if text is None and headless:
        return None
    if text is None and type(config) in MODEL_FOR_CAUSAL_LM_MAPPING:
        kind = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
        text = _of_class(model, kind[0] if isinstance(kind, tuple) else kind, config)
    elif text is None:
        text = _of_modules(model, config)
    if text is not None:
        text.generation_config = getattr(model, "generation_config", None)
        text.name_or_path = getattr(model, "name_or_path", "")
    return text


def _lightened(model: Any) -> Any:
    """Return a model of one config that also sees (Phi-4) without what surrounds its encoders, or None without any."""
    from transformers import PreTrainedModel

    kinds = tuple((getattr(model.config, "sub_configs", None) or {}).values())
    encoders = {m for m in model.modules() if isinstance(m, PreTrainedModel) and isinstance(m.config, kinds)}
    size = getattr(model.config, "num_hidden_layers", None)
    if not encoders or size is None:
        return None
    layers = {m for m in model.base_model.children() if isinstance(m, nn.ModuleList) and len(m) == size}
    inside = {model.get_input_embeddings(), model.get_output_embeddings(), *layers}
    found = [model.get_submodule(name) for name in outside(model, inside)]
    return _copied_without(model, {part for module in found for part in _around(module, encoders)})


def _around(module: nn.Module, encoders: set[nn.Module]) -> Iterator[nn.Module]:
    """Yield the largest modules around encoders, except modules that only group others, which run on text too."""
    if encoders.isdisjoint(module.modules()):
        return
    own = module in encoders or surgery.holds_own_tensors(module)
    if own or any(encoders.isdisjoint(child.modules()) and _holds_tensors(child) for child in module.children()):
        yield module
    else:
        for child in module.children():
            yield from _around(child, encoders)


def _holds_tensors(module: nn.Module) -> bool:
    return next(chain(module.parameters(), module.buffers()), None) is not None


def _copied_without(module: Any, left: set[nn.Module]) -> Any:
    """Return a module with an AbsentEncoder for each module in `left`, sharing what holds none of them."""
    if module in left:
        return AbsentEncoder()
    if left.isdisjoint(module.modules()):
        return module
    return surgery.with_children(
        module, {name: _copied_without(child, left) for name, child in module.named_children()}
    )


def _parts(model: Any, config: Any) -> Iterator[Any]:
    """Yield the models inside of a model that have its text config, outer ones first."""
    from transformers import PreTrainedModel

    for module in model.modules():
        if isinstance(module, PreTrainedModel) and type(module.config) is type(config) and module is not model:
            yield module


def _held(model: Any, config: Any) -> Any:
    """Return a copy of the causal LM that a model holds (Llama 4 and Kosmos 2 do), or None without one."""
    head = model.get_output_embeddings()
    for part in _parts(model, config):
        own = part.get_output_embeddings()
        if own is not None and (own is head or head is None):
            return copy.copy(part)
    return None


def _of_class(model: Any, kind: Any, config: Any) -> Any:
    """Return a causal LM of a class around the text modules of a model, or None if it needs other modules too."""
    with torch.device("meta"):
        text = kind(config)
    inner = type(text.base_model)
    found = [module for module in model.modules() if type(module) is inner]
    if len(found) != 1 or isinstance(found[0], type(model)):
        return None
    setattr(text, text.base_model_prefix, found[0])
    text.set_output_embeddings(model.get_output_embeddings())
    theirs = set(model.modules())
    others = [module for module in text.modules() if module not in theirs]
    return None if any(map(surgery.holds_own_tensors, others)) else text


def _of_modules(model: Any, config: Any) -> Any:
    """Return a causal LM of no registered class around the text modules of a model, or None if they are no part."""
    inner = next(_parts(model, config), None)
    if inner is None:
        return None
    return _causal_lm(_family(inner), type(inner).__name__)(config, inner, model.get_output_embeddings())


def _family(inner: Any) -> Any:
    """Return the base class of a family's models."""
    from transformers import PreTrainedModel

    return next(kind for kind in type(inner).__mro__[1:] if issubclass(kind, PreTrainedModel))


@cache
def _causal_lm(family: Any, name: str) -> Any:
    """Return a class of causal LMs: a text model of a family, given by its base class, and an output embedding."""
    from transformers.modeling_outputs import CausalLMOutputWithPast

    class CausalText(family):  # type: ignore[misc]
        base_model_prefix = "model"

        def __init__(self, config: Any, text: Any, head: nn.Module, scaled: bool = True) -> None:
            family.__init__(self, config)
            self.model, self.lm_head, self.scaled = text, head, scaled
            surgery.share_placement(self, text)

        def get_input_embeddings(self) -> Any:
            return self.model.get_input_embeddings()

        def get_output_embeddings(self) -> Any:
            return self.lm_head

        def forward(self, *arguments: Any, **named: Any) -> Any:
            output = self.model(*arguments, **named)
            logits = self.lm_head(output.last_hidden_state)
            if self.scaled:
                logits = logits * logit_scale_of(self.config)
                if (cap := logit_softcap_of(self.config)) is not None:
                    logits = cap * torch.tanh(logits / cap)
            return CausalLMOutputWithPast(logits=logits, past_key_values=output.get("past_key_values"))

    # transformers reads in the source of a class's module what it supports.
    CausalText.__module__ = family.__module__
    CausalText.__name__ = CausalText.__qualname__ = f"{name.removesuffix('Model')}ForCausalLM"
    return CausalText


def _unscaled(text: Any) -> Any:
    """Return a causal LM like another without a factor and a bound on its logits."""
    inner = text.base_model
    return _causal_lm(_family(inner), type(inner).__name__)(text.config, inner, text.get_output_embeddings(), False)


def _embedded(model: Any) -> tuple[int, torch.device]:
    """Return how many tokens a model embeds, and where."""
    table = next(model.get_input_embeddings().parameters())
    return len(table), table.device


def _apart(whole: torch.Tensor, text: Any, embedded: tuple[int, torch.device]) -> float:
    """Return how far a model's log-probabilities are from others, in nats, or infinity if it does not run."""
    try:
        return float((whole - _probed(text, *embedded)).abs().max())
    except UnsupportedModelError:
        return float("inf")


@torch.inference_mode()
def _probed(model: Any, vocabulary: int, device: torch.device) -> torch.Tensor:
    """Return a model's log-probabilities of some tokens, float64 [tokens].

    Raises:
        UnsupportedModelError: if it does not run on text alone, a EncoderNeededError if it lacks encoders.
    """
    ids = torch.arange(1, _PROBE + 1, device=device) * 37 % min(vocabulary, 1000)
    try:
        logits = model(input_ids=ids[None], use_cache=False).logits[0, :, :vocabulary]
    except (torch.OutOfMemoryError, MemoryError, EncoderNeededError):
        raise
    except Exception as error:  # of many types, from a family's own code
        raise_if_memory(error, type(model).__name__)
        kind = EncoderNeededError if _lacks_encoders(model) else UnsupportedModelError
        message = f"{type(model).__name__} does not run on text alone ({type(error).__name__}: {error})"
        raise kind(message) from error
    ids = ids.to(logits.device)
    values: torch.Tensor = logits.double().log_softmax(-1).gather(1, ids.roll(-1)[:, None])[:, 0]
    return values


def _lacks_encoders(model: Any) -> bool:
    return any(isinstance(module, AbsentEncoder) for module in model.modules())


def classes_for(config: Any, trust_remote_code: bool, adapter: Path | None) -> list[Any]:
    """Return the class that loads a checkpoint, preceded by one without the parts that text does not need, if any.

    Causal LMs are registered as such; other models generate text about images or sounds. An adapter may be for any of
    the classes and for vision and audio encoders too, so it selects the full class with the modules that it names.
    """
    import transformers
    from transformers.models.auto import modeling_auto

    known = {
        transformers.AutoModelForCausalLM: modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING,
        transformers.AutoModelForImageTextToText: modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING,
        transformers.AutoModelForMultimodalLM: modeling_auto.MODEL_FOR_MULTIMODAL_LM_MAPPING,
    }
    if trust_remote_code:
        theirs = getattr(config, "auto_map", None) or {}
        if found := [automatic for automatic in known if automatic.__name__ in theirs]:
            return found[:1]
    fitting = [automatic for automatic, mapping in known.items() if type(config) in mapping]
    if not fitting:
        return [transformers.AutoModelForCausalLM]
    kinds = [known[automatic][type(config)] for automatic in fitting]
    if adapter is not None:
        if len(set(kinds)) == 1 or any(isinstance(kind, tuple) for kind in kinds):
            return fitting[:1]
        named = [peft_adapters.named_in(on_meta(kind, config), adapter) for kind in kinds]
        return [fitting[named.index(max(named))]]
    lean = kinds[0] if isinstance(kinds[0], tuple) else without_encoders(kinds[0], config)
    return fitting[:1] if lean is kinds[0] else [lean, fitting[0]]


def without_encoders(kind: Any, config: Any) -> Any:
    """Return a class like a transformers model class without the modules outside of its text model.

    Their weights are then not read from a checkpoint. `kind` itself is returned if it has no such modules.
    """
    alone = kind.config_class is not type(config)  # transformers makes a causal LM of the text config
    if alone or not may_have_encoders(config):
        return kind
    whole = on_meta(kind, config)
    text = assembled(whole)
    if text is None:
        return kind
    left = [name for name, module in text.named_modules() if isinstance(module, AbsentEncoder)]
    left = left or list(outside(whole, set(text.modules())))
    if not left:
        return kind
    prefixes = tuple(f"{name}." for name in left)

    def init(self: Any, *arguments: Any, **named: Any) -> None:
        kind.__init__(self, *arguments, **named)
        for name in left:
            self.set_submodule(name, AbsentEncoder())
        tied = self.all_tied_weights_keys.items()
        self.all_tied_weights_keys = {key: value for key, value in tied if not key.startswith(prefixes)}
        surgery.ignore_unexpected(self, [f"^{re.escape(prefix)}" for prefix in prefixes])

    # transformers looks up by the name of a class how the names of its weights have changed.
    return type(kind.__name__, (kind,), {"__init__": init, "__module__": kind.__module__})


def on_meta(kind: Any, config: Any) -> Any:
    """Return a model of a class for a config, or for its text config if the class takes that, without weights."""
    own = config if kind.config_class is type(config) else config.get_text_config(decoder=True)
    with torch.device("meta"):
        return kind(copy.deepcopy(own))
