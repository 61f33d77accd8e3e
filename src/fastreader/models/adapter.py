"""TreeModel: a transformers causal LM that runs packed trees."""

from __future__ import annotations

import copy
import inspect
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fastreader.errors import UnsupportedModelError
from fastreader.models import fused, memory
from fastreader.models.attention import ATTENTION_NAME, KEYWORD, TreePass, attention_forward, layer_windows
from fastreader.models.head import LogitHead
from fastreader.models.keys import Keys, TreeKeys
from fastreader.models.kv import KeyValues, Reuse
from fastreader.models.precision import Precision
from fastreader.models.rotary import RotaryRegimes, rotary_regimes
from fastreader.models.wide import why_not_wide, widen
from fastreader.ops.linear_logprob import LogprobStats, linear_logprob_stats
from fastreader.tree import PrefixTree


class TreeModel:
    """A causal LM entered through transformers' attention interface.

    The model given is left as it was found: what runs is a structural copy, new modules and config around
    the same parameter tensors (buffers are copied, since rotary modules write to theirs).

    Args:
        model: a transformers causal LM on one device.
        name: for messages.
        precision: of the products, "fast", "high" or "exact".

    Attributes:
        why_own: None when the modules were widened (`models.wide`), else why the model's own modules run as
            they are, in the stored type; "high" and "exact" then mean weights converted to float32.
        precision: what runs.

    Raises:
        UnsupportedModelError: the architecture cannot run on a packed tree.
    """

    def __init__(self, model: Any, name: str, precision: Precision) -> None:
        self.name = name
        refuse_unsupported(model, name)
        self.why_own = why_not_wide(model)
        if self.why_own and precision != "fast" and model.dtype in (torch.bfloat16, torch.float16):
            model = copy.deepcopy(model).float()
        self.precision: Precision = precision
        if self.why_own:
            self.precision = "exact" if model.dtype in (torch.float32, torch.float64) else "fast"
        self.plain: Any = _structural_copy(model)
        self.model = _structural_copy(model)
        self.config = self.model.config.get_text_config()
        self.windows = layer_windows(self.config, name)
        register()
        self.model.config._attn_implementation = ATTENTION_NAME
        if self.why_own is None:
            wide = torch.float64 if model.dtype == torch.float64 else torch.float32
            widen(self.model, precision, wide, self.windows)
        self.regimes = rotary_regimes(self.config)
        self.head = lm_head(self.model, name)
        self.logit_scale = logit_scale_of(self.config)
        self.logit_softcap: float | None = getattr(self.config, "final_logit_softcapping", None)
        self.logits = LogitHead(self.head, self._head_precision(), self.logit_scale, self.logit_softcap)

    @property
    def path(self) -> str:
        """Which code runs the forward pass, in words: fused parts, transformers' own on float32, or as stored."""
        return f"transformers' own: {self.why_own}" if self.why_own else fused.describe(self.model)

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.head.weight.device

    @property
    def dtype(self) -> torch.dtype:
        """Type of the weights."""
        return self.head.weight.dtype

    @property
    def bytes_per_token(self) -> int:
        """Estimated peak activation memory of a pass, in bytes a packed token."""
        forward: memory.Forward = "own" if self.why_own else "fused" if fused.covers(self.model) else "widened"
        return memory.bytes_per_token(self.config, self.dtype, forward, self._key_dtype())

    @property
    def bytes_of_pass(self) -> int:
        """Estimated memory of a pass beside that of its tokens, in bytes."""
        return memory.bytes_of_pass(self.config, self.dtype) if self.why_own is None else 0

    @property
    def max_length(self) -> int | None:
        """Longest input in tokens the config allows; None where it sets no limit."""
        return context_length(self.config, self.regimes)

    @property
    def key_value_bytes(self) -> int:
        """Memory of one token's keys and values in all layers, in bytes."""
        return memory.key_value_bytes(self.config, self._key_dtype())

    def end_tokens(self) -> frozenset[int]:
        """Tokens that end a text by the model's own account: its generation config's, else its config's."""
        generation = getattr(self.model, "generation_config", None)
        for source in (generation, self.config):
            tokens = getattr(source, "eos_token_id", None)
            if tokens is not None:
                return frozenset([tokens] if isinstance(tokens, int) else tokens)
        return frozenset()

    def _key_dtype(self) -> torch.dtype:
        if self.why_own:
            return self.dtype
        if self.precision == "fast":
            return torch.bfloat16
        return torch.float64 if self.dtype == torch.float64 else torch.float32

    def _head_precision(self) -> str:
        if self.why_own:  # states are in the stored type already, so that nothing is lost in bfloat16
            return "fast" if self.dtype == torch.bfloat16 else "exact"
        return self.precision

    def forget_plain(self) -> None:
        """Let go of the model's own modules, whose weights the widened ones may hold in another layout."""
        self.plain = None

    def hidden(
        self,
        tree: PrefixTree,
        impl: str = "auto",
        *,
        reuse: Reuse | None = None,
        record: KeyValues | None = None,
    ) -> Tensor:
        """Final hidden states of the tree: [T, E], after the final norm; float32 where widened.

        Args:
            tree: the tree.
            impl: implementation of the attention op.
            reuse: tokens whose keys and values are known; the states are then those of the F fresh ones, [F, E].
            record: takes every layer's keys and values of the whole tree, to go on from it.

        Raises:
            UnsupportedModelError: a layer asks for something the packed pass does not compute.
        """
        keys = TreeKeys(tree, self.device, reuse, record, impl)
        fresh = slice(None) if reuse is None else reuse.fresh
        return self.forward(tree.token_ids[fresh], tree.positions[fresh], keys)

    @torch.inference_mode()
    def forward(self, token_ids: npt.NDArray[np.int64], positions: npt.NDArray[np.int32], keys: Keys) -> Tensor:
        """Final hidden states [N, E] of new tokens at these positions that attend to `keys`.

        Raises:
            UnsupportedModelError: a layer asks for something the packed pass does not compute.
        """
        device = self.device
        state = TreePass(keys, self.windows, None if self.why_own else self.precision)
        arguments: dict[str, Any] = {
            "input_ids": torch.from_numpy(token_ids).to(device)[None],
            "position_ids": torch.from_numpy(positions).to(device, torch.int64)[None],
            "use_cache": False,
            KEYWORD: state,
        }
        states: Tensor = self.model.base_model(**arguments).last_hidden_state
        state.check_calls(self.name)
        return states[0]

    @torch.inference_mode()
    def score(self, tree: PrefixTree, impl: str = "auto", *, reuse: Reuse | None = None) -> LogprobStats:
        """Log-probabilities of the tree's (source, target) pairs, and the arg-max at each source: [R] each."""
        states = self.hidden(tree, impl, reuse=reuse)
        sources = torch.from_numpy(tree.sources if reuse is None else reuse.state_rows(tree.sources)).to(self.device)
        targets = torch.from_numpy(tree.targets).to(self.device)
        weight, bias = self.head.weight, self.head.bias
        rows = states[sources]
        if self.why_own is None and self.precision == "fast":
            rows, weight = rows.bfloat16(), weight.bfloat16()
        elif not (rows.dtype == torch.float32 and weight.dtype == torch.bfloat16):
            weight = weight.to(rows.dtype)
        # "exact" takes PyTorch's products and sums, as the linear layers do; the C++ head's are off by 1e-7 nats a
        # token on average, PyTorch's by 3e-8.
        return linear_logprob_stats(
            rows,
            weight,
            targets,
            bias=None if bias is None else bias.to(rows.dtype),
            scale=self.logit_scale,
            softcap=self.logit_softcap,
            split=self.precision == "high" or weight.dtype != rows.dtype,  # PyTorch widens the weight block by block
            impl="torch" if self.precision == "exact" else "auto",
        )

    @torch.inference_mode()
    def own_logprobs(self, tokens: list[int]) -> Tensor:
        """The model's own forward on one sequence: log-probability of each token after the first, [n - 1].

        Not after `forget_plain`.
        """
        ids = torch.tensor([tokens], device=self.device)
        logits: Tensor = self.plain(input_ids=ids, use_cache=False).logits[0, :-1]
        wide = logits.to(torch.float64 if logits.dtype == torch.float64 else torch.float32)
        return wide.log_softmax(-1).gather(1, ids[0, 1:, None])[:, 0]


def context_length(config: Any, regimes: RotaryRegimes) -> int | None:
    """Longest input in tokens a text model's config allows; None where it sets no limit."""
    if regimes.kind == "dynamic":
        return regimes.threshold
    for name in ("max_position_embeddings", "n_positions"):
        if (value := getattr(config, name, None)) is not None:
            return int(value)
    return None


def register() -> None:
    """Make the packed attention known to transformers by `ATTENTION_NAME`."""
    from transformers import AttentionInterface

    AttentionInterface.register(ATTENTION_NAME, attention_forward)


def refuse_unsupported(model: Any, name: str) -> None:
    """Raise UnsupportedModelError for a model that cannot run on a packed tree, as far as its kind tells."""
    from transformers import PreTrainedModel

    if not isinstance(model, PreTrainedModel):
        raise UnsupportedModelError(f"{name}: expected a transformers causal LM, got {type(model).__name__}")
    if model.config.is_encoder_decoder:
        raise UnsupportedModelError(f"{name}: encoder-decoder models are not supported; a causal LM is needed")
    if getattr(model, "is_quantized", False):
        raise UnsupportedModelError(f"{name}: quantised weights are not supported yet")
    devices = {str(p.device) for p in model.parameters()}
    if len(devices) > 1:
        raise UnsupportedModelError(f"{name}: weights spread over {', '.join(sorted(devices))}; one device is needed")
    if "position_ids" not in inspect.signature(model.base_model.forward).parameters:
        raise UnsupportedModelError(
            f"{name}: {type(model.base_model).__name__} takes no position_ids; ALiBi and state-space models cannot "
            "run on a packed tree"
        )


def _structural_copy(model: Any) -> Any:
    shared = {id(p): p for p in model.parameters()}
    return copy.deepcopy(model, shared).eval()


def lm_head(model: Any, name: str) -> torch.nn.Linear:
    """The model's output embedding; UnsupportedModelError where it is no linear layer."""
    head = model.get_output_embeddings()
    if not isinstance(head, torch.nn.Linear):
        raise UnsupportedModelError(f"{name}: expected a linear LM head, got {type(head).__name__}")
    return head


def logit_scale_of(config: Any) -> float:
    """Factor on the logits: Cohere multiplies by `logit_scale`, Granite divides by `logits_scaling`."""
    if (factor := getattr(config, "logit_scale", None)) is not None:
        return float(factor)
    if (divisor := getattr(config, "logits_scaling", None)) is not None:
        return 1.0 / float(divisor)
    return 1.0
