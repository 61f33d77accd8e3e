"""TreeModel: a transformers causal LM that runs packed trees."""

from __future__ import annotations

import copy
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fastreader.core.tree import IntArray, PrefixTree
from fastreader.models import fused, memory
from fastreader.models.architecture import context_length, lm_head, logit_scale_of, refuse_unsupported
from fastreader.models.attention import ATTENTION_NAME, KEYWORD, Asked, TreePass, attention_forward, layer_windows
from fastreader.models.attention_keys import Keys, TreeKeys
from fastreader.models.head import LogitHead
from fastreader.models.key_values import KeyValues, Reuse
from fastreader.models.precision import Precision
from fastreader.models.rotary import rotary_regimes
from fastreader.models.upcast import why_not_wide, widen
from fastreader.ops.linear_logprob import LogprobStats, linear_logprob_stats


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
        if getattr(model.config.get_text_config(), "attn_logit_softcapping", None) is not None:
            # PyTorch's attention has no soft cap, and transformers before 5.21 takes it all the same.
            self.plain.config._attn_implementation = "eager"
        self.model = _structural_copy(model)
        self.config = self.model.config.get_text_config()
        self.windows = layer_windows(self.config, name)
        register()
        self.model.config._attn_implementation = ATTENTION_NAME
        if self.why_own is None:
            wide = torch.float64 if model.dtype == torch.float64 else torch.float32
            widen(self.model, precision, wide, self.windows)
        self._forward: memory.Forward = "own" if self.why_own else "fused" if fused.covers(self.model) else "widened"
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
        return memory.bytes_per_token(self.config, self.dtype, self._forward, self._key_dtype())

    @property
    def beside_tokens(self) -> memory.Beside:
        """Estimated memory of a pass beside that of its tokens."""
        return memory.beside_tokens(self.config, self.dtype, self.device, self._forward, self.precision)

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

    @cached_property
    def _rounded_head(self) -> Tensor:
        """The LM head's weight in bfloat16: itself, or a copy that is made once."""
        return self.head.weight.detach().bfloat16()

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
        rows: IntArray | None = None,
    ) -> Tensor:
        """Final hidden states of the tree: [T, E], after the final norm; float32 where widened.

        Args:
            tree: the tree.
            impl: implementation of the attention op.
            reuse: tokens whose keys and values are known; the states are then those of the F fresh ones, [F, E].
            record: takes every layer's keys and values of the whole tree, to go on from it.
            rows: int64 [R], packed indices (computed ones) whose states are wanted, in any order and also more than
                once; the states are then theirs, [R, E].

        Raises:
            UnsupportedModelError: a layer asks for something the packed pass does not compute.
        """
        keys = TreeKeys(tree, self.device, reuse, record, impl)
        fresh = slice(None) if reuse is None else reuse.fresh
        tokens, positions = tree.token_ids[fresh], tree.positions[fresh]
        if rows is None:
            return self.forward(tokens, positions, keys)
        asked, place = np.unique(rows if reuse is None else reuse.state_rows(rows), return_inverse=True)
        narrow = None
        if 0 < len(asked) < len(tokens):
            own = TreeKeys(tree, self.device, reuse, record, impl, asked)
            narrow = Asked(torch.from_numpy(asked).to(self.device), own)
        states = self.forward(tokens, positions, keys, narrow)
        return states[torch.from_numpy(place if narrow is not None else asked[place]).to(self.device)]

    @torch.inference_mode()
    def forward(
        self,
        token_ids: npt.NDArray[np.int64],
        positions: npt.NDArray[np.int32],
        keys: Keys,
        asked: Asked | None = None,
    ) -> Tensor:
        """Final hidden states [N, E] of new tokens at these positions that attend to `keys`; [A, E] of those asked.

        Raises:
            UnsupportedModelError: a layer asks for something the packed pass does not compute.
        """
        device = self.device
        state = TreePass(keys, self.windows, None if self.why_own else self.precision, asked)
        arguments: dict[str, Any] = {
            "input_ids": torch.from_numpy(token_ids).to(device)[None],
            "position_ids": torch.from_numpy(positions).to(device, torch.int64)[None],
            "use_cache": False,
            KEYWORD: state,
        }
        states: Tensor = self.model.base_model(**arguments).last_hidden_state
        state.check_calls(self.name)
        return states[0] if asked is None or state.narrowed else states[0, asked.rows]

    @torch.inference_mode()
    def score(
        self, tree: PrefixTree, impl: str = "auto", *, reuse: Reuse | None = None, record: KeyValues | None = None
    ) -> LogprobStats:
        """Log-probabilities of the tree's (source, target) pairs, and the arg-max at each source: [R] each.

        Args:
            tree, impl, reuse, record: as for `hidden`.
        """
        rows = self.hidden(tree, impl, reuse=reuse, record=record, rows=tree.sources)
        targets = torch.from_numpy(tree.targets).to(self.device)
        weight, bias = self.head.weight, self.head.bias
        if self.why_own is None and self.precision == "fast":
            rows, weight = rows.bfloat16(), self._rounded_head
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
            # "torch" has no bf16x3 and widens a narrower weight block by block.
            input_precision="bf16x3" if self.precision == "high" or weight.dtype != rows.dtype else None,
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


def register() -> None:
    """Make the packed attention known to transformers by `ATTENTION_NAME`."""
    from transformers import AttentionInterface

    AttentionInterface.register(ATTENTION_NAME, attention_forward)


def _structural_copy(model: Any) -> Any:
    shared = {id(p): p for p in model.parameters()}
    return copy.deepcopy(model, shared).eval()
