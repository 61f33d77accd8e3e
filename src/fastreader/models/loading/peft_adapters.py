"""Check the folders of PEFT adapters, and merge their updates into a model's weights."""

from __future__ import annotations

import copy
import re
import sys
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fastreader.core.checks import expect, require
from fastreader.errors import InputError, MissingExtraError, ModelFileError, ModelNotFoundError, UnsupportedModelError
from fastreader.models.loading.files import has_weights, raise_if_memory
from fastreader.models.rewriting import surgery
from fastreader.models.rewriting.quantised import method

CONFIG = "adapter_config.json"
_WEIGHTS = ("adapter_model.safetensors", "adapter_model.bin")
_ROWS = {"weight": 0, "lora_embedding_A": 1, "lora_B.weight": 0}  # axes of an embedding's or LM head's tokens
_WRAPPER = re.compile(r"\.(modules_to_save|original_module)(?=\.)")
_NAME = "fastreader"  # of the adapter within peft, a part of the names of its parameters


def is_adapter(folder: Path) -> bool:
    """Return whether a folder holds an adapter without the base's weights, though perhaps with its config."""
    return (folder / CONFIG).is_file() and not has_weights(folder)


def is_left_over(folder: Path) -> bool:
    """Return whether a folder holds an adapter's config without its weights, as after a merge."""
    return (folder / CONFIG).is_file() and not any((folder / name).is_file() for name in _WEIGHTS)


def check_folder(folder: Path) -> None:
    """Raise ModelNotFoundError if a folder lacks a file of an adapter."""
    if not (folder / CONFIG).is_file():
        raise ModelNotFoundError(f"{folder}: the adapter folder lacks {CONFIG}")
    if not any((folder / name).is_file() for name in _WEIGHTS):
        raise ModelNotFoundError(f"{folder}: the adapter folder lacks its weights ({' or '.join(_WEIGHTS)})")


def base_of(folder: Path, settings: dict[str, Any]) -> str:
    """Return the base model that an adapter's config names.

    Raises:
        ModelNotFoundError: if the config names none.
    """
    base = settings.get("base_model_name_or_path")
    if not isinstance(base, str) or not base:
        raise ModelNotFoundError(f"{folder}: {CONFIG} names no base model; load the base model with `adapter`")
    return base


def merge(model: Any, folder: Path) -> Any:
    """Return a model, which is used up, with a folder's adapter merged into its weights.

    Args:
        model: the transformers model that the adapter was trained on.

    Raises:
        InputError: if the adapter is for other modules or sizes than `model` has.
        ModelFileError: if a file of it is damaged, or its weights are not finite.
        UnsupportedModelError: if an adapter of its type cannot be merged, or not into `model`.
        MissingExtraError: if peft is not installed.
    """
    try:
        import peft
    except ImportError as error:
        raise MissingExtraError("peft", "peft") from error
    if method(model):
        raise UnsupportedModelError(f"{folder}: an adapter cannot be merged into quantised weights")
    try:
        config = peft.PeftConfig.from_pretrained(str(folder))
        weights = peft.utils.load_peft_weights(str(folder), device="cpu")
        # peft saves a grown embedding of modules_to_save under three names, and reads the one without a wrapper's.
        weights = {k: v for k, v in weights.items() if (plain := _WRAPPER.sub("", k)) == k or plain not in weights}
    except (torch.OutOfMemoryError, MemoryError):
        raise
    except Exception as error:  # odd values raise errors of many types
        raise_if_memory(error, str(folder))
        raise ModelFileError(f"{folder}: the adapter is damaged ({type(error).__name__}: {error})") from error
    config.inference_mode = True
    kind = str(getattr(config.peft_type, "value", config.peft_type))
    if config.is_prompt_learning or config.is_adaption_prompt:
        raise UnsupportedModelError(f"{folder}: an adapter of type {kind} cannot be merged into weights")
    initial = getattr(config, "init_lora_weights", None)
    if isinstance(initial, str) and initial.startswith("pissa_niter"):
        raise UnsupportedModelError(
            f"{folder}: init_lora_weights={initial!r} subtracts a decomposition from the base model's weights, drawn "
            "again at every load; save the adapter with path_initial_model_for_weight_conversion, as a plain LoRA"
        )
    expected = f"one for {type(model).__name__} of this size"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what they are about raises here, or is done below
        try:
            _resize(model, weights)
            adapted = peft.PeftModel(model, config, _NAME)
            found = peft.set_peft_model_state_dict(adapted, weights, _NAME)
        except torch.OutOfMemoryError:  # a RuntimeError, which is not about the adapter
            raise
        except (ValueError, RuntimeError, KeyError) as error:
            raise_if_memory(error, str(folder))
            raise InputError(f"adapter: expected {expected}, got {folder}: {error}") from error
        except (TypeError, AttributeError, NotImplementedError) as error:
            raise ModelFileError(f"{folder}: the adapter is damaged ({type(error).__name__}: {error})") from error
    _require_used(f"adapter: expected {expected}, got {folder}", adapted, found)
    return _merged(adapted, str(folder), kind)


def _resize(model: Any, weights: Mapping[str, torch.Tensor]) -> None:
    """Give a model's embeddings the rows of an adapter that was trained after tokens were added."""
    tables = model.get_input_embeddings(), model.get_output_embeddings()
    names = tuple(f".{name}." for name, module in model.named_modules() if any(module is table for table in tables))
    rows = set()
    for key, tensor in weights.items():
        of_table, _, part = key.rpartition(next((name for name in names if name in key), "\0"))
        if of_table and (axis := _ROWS.get(part.removeprefix("base_layer."))) is not None:
            rows.add(tensor.shape[axis])
    held = model.get_input_embeddings().weight.shape[0]
    if len(rows) == 1 and rows != {held}:
        model.resize_token_embeddings(rows.pop(), mean_resizing=False)


def named_in(model: Any, folder: Path) -> int:
    """Return how well the names of an adapter's weights fit a model: the levels of modules found, of all names."""
    from safetensors import SafetensorError, safe_open

    file = folder / "adapter_model.safetensors"
    if not file.is_file():
        return 0
    try:
        with safe_open(file, framework="pt") as stream:
            names = [name.removeprefix("base_model.model.").split(".") for name in stream.keys()]  # noqa: SIM118
    except (SafetensorError, OSError):  # merging it raises, with what is wrong
        return 0
    modules = {tuple(name.split(".")) for name, _ in model.named_modules()}
    return sum(next((n for n in range(len(name), 0, -1) if tuple(name[:n]) in modules), 0) for name in names)


def _require_used(expected: str, adapted: Any, found: Any) -> None:
    """Raise InputError if weights of an adapter were not used, or parts of it got none."""
    for key in found.unexpected_keys:
        require(False, f"{expected}: the model has no {key}")
    state = adapted.state_dict()
    absent = {key for key in found.missing_keys if f".{_NAME}" in key}
    given = {tensor.data_ptr() for key, tensor in state.items() if key not in absent}
    for key in sorted(absent):  # VeRA's matrices, shared by all layers, have one name in the file
        require(state[key].data_ptr() in given, f"{expected}: it has no weight for {key}")


def carries(model: Any) -> bool:
    """Return whether a given model has adapters, as a PeftModel or by transformers' own loading."""
    peft = sys.modules.get("peft")
    return peft is not None and (isinstance(model, peft.PeftModel) or surgery.has_loaded_adapters(model))


def merged_copy(model: Any) -> Any:
    """Return a copy without adapters that computes what a given model with adapters does.

    Weights that no adapter changes are shared.

    Args:
        model: for which `carries` is true.

    Raises:
        UnsupportedModelError: if the adapters cannot be merged.
    """
    from peft import PeftModel

    wrapping = _wrapping()
    written = {id(p) for part in model.modules() if isinstance(part, wrapping) for p in part.parameters()}
    if isinstance(model, PeftModel) and model.active_peft_config.is_prompt_learning:
        raise UnsupportedModelError(f"model: {type(model).__name__} reads a learnt prompt, which no merging replaces")
    if method(model.get_base_model() if isinstance(model, PeftModel) else model):
        raise UnsupportedModelError("model: its adapters cannot be merged into quantised weights")
    copied = copy.deepcopy(model, {id(p): p for p in model.parameters() if id(p) not in written})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return _merged(copied, "model", type(model).__name__)


def merge_loaded(model: Any) -> None:
    """Merge the adapters that transformers loaded together with a model's weights, in place."""
    if surgery.has_loaded_adapters(model):
        _merged(model, "model", type(model).__name__)


def _merged(model: Any, name: str, kind: str) -> Any:
    """Merge the active adapters of a model in place, and return the transformers model without them."""
    from peft import PeftModel

    wrapping = _wrapping()
    parts = [part for part in model.modules() if isinstance(part, wrapping)]
    off = {surgery.disables_adapters(part) for part in parts}
    expect(len(off) < 2, "model", "adapters that are all enabled or all disabled", "some of each")
    plain = model.get_base_model() if isinstance(model, PeftModel) else model
    _untie(plain, wrapping)
    _add_biases(parts)
    try:
        if off == {True}:
            for part in parts:
                if getattr(part, "merged", False):
                    part.unmerge()
        if isinstance(model, PeftModel):
            plain = model.unload() if off == {True} else model.merge_and_unload(safe_merge=True)
        else:
            _replace(plain, wrapping, merge=off != {True})
            surgery.forget_loaded_adapters(plain)
    except ValueError as error:
        raise ModelFileError(f"{name}: {error}") from error
    except torch.OutOfMemoryError:
        raise
    except (NotImplementedError, AttributeError, TypeError, RuntimeError) as error:
        raise_if_memory(error, name)
        raise UnsupportedModelError(
            f"{name}: an adapter of type {kind} cannot be merged into weights: {error}"
        ) from error
    left = [where for where, part in plain.named_modules() if isinstance(part, wrapping)]
    if left:
        raise UnsupportedModelError(f"{name}: an adapter of type {kind} cannot be merged into {left[0]}")
    return plain


def _wrapping() -> tuple[Any, ...]:
    """Return peft's classes of modules that stand around a model's own."""
    from peft.tuners.tuners_utils import BaseTunerLayer
    from peft.utils.other import AuxiliaryTrainingWrapper

    return BaseTunerLayer, AuxiliaryTrainingWrapper


def _untie(model: Any, wrapping: tuple[Any, ...]) -> None:
    """Give adapted modules their own copy of weights that they share, such as the embedding's with the LM head.

    Merging writes to them; the other module must keep its values.
    """
    users = Counter(id(p) for part in model.modules() for _, p in _own_parameters(part))
    for part in list(model.modules()):
        inner = getattr(part, "base_layer", getattr(part, "original_module", None))
        if not isinstance(part, wrapping) or not isinstance(inner, nn.Module):
            continue
        for name, parameter in _own_parameters(inner):
            if users[id(parameter)] > 1:
                setattr(inner, name, nn.Parameter(parameter.detach().clone(), requires_grad=False))
                model.config.tie_word_embeddings = False


def _add_biases(parts: Iterable[Any]) -> None:
    """Give layers without a bias one of zeros where an adapter has one (`lora_bias=True`)."""
    for part in parts:
        inner = getattr(part, "base_layer", None)
        if (
            isinstance(inner, nn.Linear)
            and getattr(inner, "bias", None) is None
            and any(getattr(part, "lora_bias", {}).values())
        ):
            inner.bias = nn.Parameter(inner.weight.new_zeros(inner.out_features), requires_grad=False)


def _own_parameters(module: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """Return a module's parameters outside of its submodules, also those that have another name in it."""
    return list(module.named_parameters(recurse=False, remove_duplicate=False))


def _replace(model: Any, wrapping: tuple[Any, ...], merge: bool) -> None:
    """Replace the outermost adapted modules by their own, with the updates if `merge`."""
    done: list[str] = []
    for name, part in list(model.named_modules()):
        if not isinstance(part, wrapping) or any(name.startswith(f"{outer}.") for outer in done):
            continue
        if hasattr(part, "unload_and_optionally_merge_module"):
            own = part.unload_and_optionally_merge_module(merge=merge, safe_merge=True, adapter_names=None)
        else:
            if merge:
                part.merge(safe_merge=True)
            own = part.get_base_layer()
        model.set_submodule(name, own)
        done.append(name)
