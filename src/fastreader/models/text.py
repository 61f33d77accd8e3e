"""The text model of a checkpoint that also sees or hears: its own modules under the causal LM of its text config.

Vision and audio towers never see a prompt of text. With them a checkpoint would run by transformers' own modules, and
they would take memory. The text model is compared with the whole one before it takes its place.
"""

from __future__ import annotations

from typing import Any

import torch

_PROBE = 12  # tokens
_MOST_APART = {torch.float64: 1e-6, torch.float32: 1e-4}  # nats of a token's log-probability; other types: 0.1


def is_composite(config: Any) -> bool:
    """Return whether a config describes a text model among others."""
    return config.get_text_config(decoder=True) is not config


def text_model(model: Any) -> Any:
    """Return the causal LM over the text part of a model, which shares its modules and weights.

    The model itself is returned if it is of text alone, if its text part has no causal LM of its own class, or if that
    gives other numbers than the whole model: then another part of it takes part in reading text.
    """
    text = _assembled(model)
    if text is None:
        return model
    trained = [module for module in model.modules() if module.training]
    model.eval()  # the caller's own modules, which dropout would make differ
    try:
        same = _apart(model, text) <= _MOST_APART.get(model.dtype, 0.1)
    finally:
        for module in trained:
            module.training = True
    return text if same else model


def _assembled(model: Any) -> Any:
    """Return the causal LM of a model's text config over the model's own modules; None without one."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

    if not is_composite(model.config):
        return None
    config = model.config.get_text_config(decoder=True)
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        return None
    kind = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    if isinstance(kind, tuple):
        kind = kind[0]
    with torch.device("meta"):
        text = kind(config)
    inner = type(text.base_model)
    found = [module for module in model.modules() if type(module) is inner]
    head = model.get_output_embeddings()
    if len(found) != 1 or head is None or isinstance(found[0], type(model)):
        return None
    setattr(text, text.base_model_prefix, found[0])
    text.set_output_embeddings(head)
    text.generation_config = getattr(model, "generation_config", text.generation_config)
    text.name_or_path = getattr(model, "name_or_path", "")
    left = [key for key, tensor in (*text.named_parameters(), *text.named_buffers()) if tensor.is_meta]
    return None if left else text


@torch.inference_mode()
def _apart(model: Any, text: Any) -> float:
    """Return the largest difference of the two models' log-probabilities of some tokens, nats."""
    vocabulary = text.get_input_embeddings().weight.shape[0]
    ids = torch.arange(1, _PROBE + 1, device=model.device) * 37 % min(vocabulary, 1000)
    whole, alone = (one(input_ids=ids[None], use_cache=False).logits[0].double() for one in (model, text))
    targets = ids.roll(-1)[:, None]
    values = [logits[:, :vocabulary].log_softmax(-1).gather(1, targets) for logits in (whole, alone)]
    return float((values[0] - values[1]).abs().max())
