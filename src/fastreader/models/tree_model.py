"""TreeModel: a transformers causal LM that runs packed trees."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fastreader.core.checks import expect, is_int, shown
from fastreader.core.lazy import cached_property
from fastreader.core.tree import IntArray, PrefixTree
from fastreader.errors import ModelFileError, UnsupportedModelError
from fastreader.models.config import windows
from fastreader.models.config.facts import (
    before_head,
    context_length,
    lm_head,
    logit_scale_of,
    logit_softcap_of,
    rotary_regimes,
)
from fastreader.models.config.windows import layers_without_attention
from fastreader.models.machine import memory
from fastreader.models.machine.arithmetic import Precision
from fastreader.models.machine.devices import devices_of
from fastreader.models.passes.attention import TreePass
from fastreader.models.passes.cuda_graphs import graphs_wanted
from fastreader.models.passes.decode_keys import DecodeKeys
from fastreader.models.passes.key_values import KeyValues, Reuse
from fastreader.models.passes.logit_head import LogitHead
from fastreader.models.passes.packed_keys import AttentionKeys, PassTables, PreparedPass, SelectedRows, Shapes
from fastreader.models.passes.pass_graphs import PassGraphs
from fastreader.models.passes.recurrent_states import RecurrentStates
from fastreader.models.rewriting import fused, quantised, recurrent, surgery
from fastreader.models.rewriting.choices import Choices
from fastreader.models.rewriting.draft import Draft, structural_copy
from fastreader.models.rewriting.rewrites import rewrite
from fastreader.models.rewriting.upcast import why_not_upcast
from fastreader.models.supported import refuse, why_not_deterministic, why_unsupported
from fastreader.ops import triton_support
from fastreader.ops.linear import BlockTensor, Products
from fastreader.ops.linear_logprob import LogprobStats, linear_logprob_stats
from fastreader.ops.upload import Upload, Uploaded


class TreeModel:
    """A causal LM that runs packed trees.

    The given model is left as it was found. A structural copy runs: new modules and config around the same parameter
    tensors (buffers are copied, since rotary modules write to theirs).

    Args:
        model: a transformers causal LM, on one device or settled on several (`rewriting.device_hooks`).
        precision: of the products, "fast", "high" or "exact".
        products: how linear layers multiply, see `machine.arithmetic`.
        deterministic: sum in an order that does not depend on the other sequences of a pass.
        own: the model is nobody else's, so that its weights may move (to views of joined buffers, on a GPU).
        choices: of trials, which fill in what is not known; None tries everything.

    Attributes:
        why_not_upcast: None if the modules were upcast, else why the model's own modules run as
            they are, in the stored type; "high" and "exact" then mean weights converted to float32.
        precision: the precision that runs.
        products: how linear layers multiply, a precision of `ops.linear`.
        device: of the LM head, where passes begin and end.
        devices: of the weights, each once.
        rewrites: names of the rewrites that made `model` of a structural copy, in order.
        mixers: the layer of each recurrence or short convolution; empty for a model of attention only.
        state_bytes: memory of the states of recurrent layers after one token.
        graphs: passes recorded as CUDA graphs; None if FASTREADER_CUDA_GRAPHS is 0 or they cannot be.

    Raises:
        UnsupportedModelError: if the architecture cannot run on a packed tree, or not with `deterministic`.
    """

    def __init__(
        self,
        model: Any,
        name: str,
        precision: Precision,
        products: Products,
        deterministic: bool = False,
        *,
        own: bool = False,
        choices: Choices | None = None,
    ) -> None:
        self.name = name
        self.deterministic = deterministic
        refuse(name, why_unsupported(model))
        self.why_not_upcast = why_not_upcast(model)
        if quantised.method(model):
            refuse(name, self.why_not_upcast, "together with quantised layers, ")
        if deterministic:
            reason = why_not_deterministic(model, self.why_not_upcast, products)
            refuse(name, reason, "deterministic=True is not possible: ")
        self.products: Products = products
        # A CPU whose float32 products are as fast as bfloat16's should not run a model's own modules in bfloat16.
        if self.why_not_upcast and self.products != "bf16" and model.dtype in (torch.bfloat16, torch.float16):
            model = copy.deepcopy(model).float()
        self.precision: Precision = precision
        if self.why_not_upcast:
            self.precision = "exact" if model.dtype in (torch.float32, torch.float64) else "fast"
        self.original: Any = structural_copy(model)
        # The check compares with eager attention: PyTorch's has no soft cap, yet transformers before 5.21 uses it.
        surgery.choose_attention(self.original, "eager")
        surgery.choose_plain_experts(self.original)
        self.model = structural_copy(model)
        quantised.check_independent(self.model, name)
        compute = torch.float64 if model.dtype == torch.float64 else torch.float32
        choices = Choices() if choices is None else choices
        draft = Draft(self.model, name, self.products, self.why_not_upcast is None, compute, own, choices)
        rewrite(draft)
        self.config, self.mixers, self.windows = draft.config, draft.mixers, draft.windows
        self.rewrites = tuple(draft.applied)
        self.regimes = rotary_regimes(self.config)
        self.silent_layers = layers_without_attention(self.config) | frozenset(
            getattr(self.config, "cross_attention_layers", None) or ()  # those for images
        )
        self._before_head = before_head(self.model)
        if self._before_head is not None and self.why_not_upcast is None:
            self._before_head = copy.deepcopy(self._before_head).to(compute)
        self.head = lm_head(self.model, name)
        self.device: torch.device = self.head.weight.device
        self.devices = devices_of(model)
        self.logit_scale = logit_scale_of(self.config)
        self.logit_softcap = logit_softcap_of(self.config)
        head_precision = self.products
        if self.why_not_upcast:  # states are in the stored type already, so bfloat16 loses nothing
            head_precision = "bf16" if self.dtype == torch.bfloat16 else "torch"
        self.logits = LogitHead(self.head, head_precision, self.logit_scale, self.logit_softcap)
        self._shapes: Shapes = {}
        self.graphs: PassGraphs | None = None
        self.fused_step: fused.FusedStep | str = "transformers' own modules"
        if self.why_not_upcast is None:
            self.fused_step = fused.FusedStep.of(draft)
        self.state_bytes, self._state_heads = self._measured_states()
        if graphs_wanted() and self.why_not_graphs is None:
            self.graphs = PassGraphs(self.device, self._shapes, self.scored, self.weights_a_layer)

    @property
    def dtype(self) -> torch.dtype:
        """Type of the weights."""
        return self.head.weight.dtype

    @cached_property
    def forward_path(self) -> str:
        """The code that runs the forward pass, in words: fused parts, upcast modules, or transformers' own."""
        if self.why_not_upcast:
            return f"transformers' own: {self.why_not_upcast}"
        return ", ".join(filter(None, (fused.describe(self.model), quantised.described(self.model))))

    @cached_property
    def writing_path(self) -> str:
        """How a step of generation runs, in words, for texts that do not share their prompts."""
        if self.writes_on_device:
            return "a step that chooses its tokens on the device"
        return f"layer by layer: {self.fused_step}" if isinstance(self.fused_step, str) else "a step in one call"

    @cached_property
    def writes_on_device(self) -> bool:
        """Whether generation can stay on the device: one GPU, fixed rotary frequencies, and a kernel for its keys."""
        alone = len(self.devices) == 1 and triton_support.on_gpu(self.device)
        return alone and not self.mixers and self.regimes.fixed

    @cached_property
    def why_not_graphs(self) -> str | None:
        """Why passes and steps of generation cannot be recorded as CUDA graphs, in words, or None if they can."""
        if not triton_support.on_gpu(self.device):
            return f"the model is on {self.device}"
        if len(self.devices) > 1:
            return "its layers are on several devices"
        if self.mixers or not fused.covers(self.model):
            return "some layers are the model's own"
        return None if self.regimes.fixed else "its rotary embedding depends on the length"

    @cached_property
    def weights_a_layer(self) -> int:
        """Mean number of weights of a layer, experts included."""
        base = self.original.base_model
        held: int = sum(weight.numel() for weight in base.parameters())
        embedding: int = base.get_input_embeddings().weight.numel()
        return (held - embedding) // len(self.windows)

    @cached_property
    def bytes_per_token(self) -> int:
        """Estimated peak activation memory of a pass, in bytes per packed token."""
        own = memory.bytes_per_token(self.config, self.dtype, self._forward, self._operand_dtype)
        pairs = self._state_heads if triton_support.on_gpu(self.device) else 0
        return own + memory.recurrent_bytes_per_token(recurrent.mixers(self.model), self.state_bytes, pairs)

    @cached_property
    def overhead(self) -> memory.Overhead:
        """Estimated memory of a pass besides that of its tokens."""
        return memory.pass_overhead(self.config, self.dtype, self.device, self._forward, self.products)

    @cached_property
    def max_length(self) -> int | None:
        """Longest input the config allows, in tokens, or None if it sets no limit."""
        return context_length(self.config, self.regimes)

    @property
    def context_note(self) -> str:
        """What to add to a message about an input longer than `max_length`."""
        if windows.indexed_context(self.config) != self.max_length:
            return ""
        return (
            "; beyond it, its attention reads only keys that an index selects, which the packed pass does not compute"
        )

    @cached_property
    def key_value_bytes(self) -> int:
        """Memory of one token's keys and values in all layers, in bytes."""
        return memory.key_value_bytes(self.config, self._operand_dtype)

    def _measured_states(self) -> tuple[int, int]:
        """Return the memory of the states of recurrent layers after one token, and their most heads, from a pass."""
        if not self.mixers:
            return 0, 0
        tree = PrefixTree.build([([0], [])])
        key_values = self.new_key_values(tree)
        self.hidden(tree, key_values=key_values)
        assert key_values.states is not None
        return key_values.states.nbytes, key_values.states.most_heads

    @cached_property
    def end_tokens(self) -> frozenset[int]:
        """Tokens that end a text according to the model's generation config, else its config.

        Raises:
            ModelFileError: if they are neither a token id nor a list of them.
        """
        for source in (getattr(self.model, "generation_config", None), self.config):
            given = getattr(source, "eos_token_id", None)
            if given is not None:
                tokens = list(given) if isinstance(given, Iterable) else [given]
                if isinstance(given, str | Mapping) or not all(map(is_int, tokens)):
                    wanted = f"{self.name}: {type(source).__name__}.eos_token_id: expected a token id or a list of them"
                    raise ModelFileError(f"{wanted}, got {shown(given)}")
                return frozenset(map(int, tokens))
        return frozenset()

    @cached_property
    def _forward(self) -> memory.Forward:
        return "own" if self.why_not_upcast else "fused" if fused.covers(self.model) else "upcast"

    @cached_property
    def _operand_dtype(self) -> torch.dtype:
        if self.why_not_upcast:
            return self.dtype
        if self.products == "bf16":
            return torch.bfloat16
        return torch.float64 if self.dtype == torch.float64 else torch.float32

    @cached_property
    def _bf16_head(self) -> Tensor:
        """The LM head's weight in bfloat16: the weight itself, or a copy made once."""
        return self.head.weight.detach().bfloat16()

    def new_key_values(self, tree: PrefixTree, reuse: Reuse | None = None, *, leaves_only: bool = False) -> KeyValues:
        """Return an empty cache for a tree, with states of recurrent layers where texts may continue.

        Args:
            reuse: tokens whose keys, values and states are cached.
            leaves_only: keep states only at the leaves, from which texts are generated; otherwise also before them and
                where the tree branches.
        """
        if not self.mixers:
            return KeyValues()
        nodes = tree.leaves
        if not leaves_only:
            parents, children = np.unique(tree.parent[tree.parent >= 0], return_counts=True)
            nodes = np.concatenate([nodes, tree.parent[nodes], parents[children > 1]])
        nodes = np.unique(nodes[nodes >= 0]).astype(np.int64)
        if reuse is not None:
            nodes = np.intersect1d(nodes, reuse.computed)
        return KeyValues(states=RecurrentStates(nodes))

    def release_original(self) -> None:
        """Release the model's own modules, whose weights the upcast ones may hold in another layout."""
        _ = self.weights_a_layer  # counted in them
        self.original = None
        for module in self.model.modules():
            if isinstance(module, (fused.UpcastLinear, fused.JoinedLinear)):
                module.release()

    def hidden(
        self,
        tree: PrefixTree,
        impl: str = "auto",
        *,
        reuse: Reuse | None = None,
        key_values: KeyValues | None = None,
        rows: IntArray | None = None,
    ) -> Tensor:
        """Return final hidden states of the tree, after the final norm: [T, E], float32 if upcast.

        Args:
            impl: implementation of the attention op.
            reuse: tokens whose keys and values are cached; the states are then of the C computed tokens, [C, E].
            key_values: an empty cache, filled with every layer's keys and values of the whole tree.
            rows: int64 [R], packed indices of computed tokens, in any order and with repeats; only their states are
                returned, [R, E].

        Raises:
            UnsupportedModelError: if a layer needs something that the packed pass does not compute.
        """
        tables = PassTables(self.device, self._shapes)
        return self.run(
            PreparedPass.of(tree, self.device, tables, impl=impl, reuse=reuse, key_values=key_values, rows=rows)
        )

    @torch.inference_mode()
    def forward(
        self, token_ids: npt.NDArray[np.int64], positions: npt.NDArray[np.int32], keys: AttentionKeys
    ) -> Tensor:
        """Return final hidden states of N new tokens that attend to `keys`: [N, E].

        Raises as `hidden`.
        """
        if isinstance(keys, DecodeKeys) and isinstance(self.fused_step, fused.FusedStep):
            ran, windows = self.fused_step.numbers, self.windows  # `ran` is None if all layers run
            row_keys = keys.row_keys(windows if ran is None else [windows[number] for number in ran])
            if row_keys is not None and self._before_head is None:
                return self.fused_step(token_ids, positions, row_keys)
        upload = Upload(self.device)
        return self.run(PreparedPass(upload.add(token_ids), upload.add(positions.astype(np.int64)), keys))

    def run(self, prepared: PreparedPass) -> Tensor:
        """Return final hidden states of a prepared pass: [N, E], or [R, E] of the returned ones."""
        states = self.states(prepared.tokens.get(), prepared.positions.get(), prepared.keys, prepared.selected)
        return states if prepared.returned is None else states[prepared.returned.get()]

    @torch.inference_mode()
    def states(
        self, tokens: Tensor, positions: Tensor, keys: AttentionKeys, selected: SelectedRows | None = None
    ) -> Tensor:
        """Return final hidden states of tokens that are on the device: [N, E], or [A, E] of the selected ones.

        Args:
            tokens, positions: int64 [N].
            keys: what the tokens attend to.
            selected: the tokens whose states are needed; None for all.
        """
        precision = None if self.why_not_upcast else self.products
        state = TreePass(keys, self.windows, precision, selected, context=self.max_length)
        states = state.run(self.model, tokens, positions).to(self.device)
        state.check_calls(self.name, self.silent_layers)
        if self.mixers and len(state.states.calls) < len(self.mixers):
            left = sorted({layer for mixer, layer in enumerate(self.mixers) if mixer not in state.states.calls})
            raise UnsupportedModelError(f"{self.name}: the recurrences of layers {left} did not run")
        if selected is not None and not state.narrowed:
            states = states[selected.indices.get()]
        return states if self._before_head is None else self._before_head(states)

    @torch.inference_mode()
    def score(
        self, tree: PrefixTree, impl: str = "auto", *, reuse: Reuse | None = None, key_values: KeyValues | None = None
    ) -> LogprobStats:
        """Return log-probabilities of the tree's (source, target) pairs, and the argmax at each source: [R] each.

        The arguments are explained at `hidden`.
        """
        self._check_targets(tree)
        if self.graphs is not None and impl == "auto" and reuse is None and key_values is None:
            replayed = self.graphs.score(tree)
            if replayed is not None:
                return replayed
        tables = PassTables(self.device, self._shapes)
        targets = tables.upload.add(tree.targets)
        options: dict[str, Any] = {"impl": impl, "reuse": reuse, "key_values": key_values, "rows": tree.sources}
        return self.scored(PreparedPass.of(tree, self.device, tables, **options), targets)

    @torch.inference_mode()
    def scored(self, prepared: PreparedPass, targets: Uploaded) -> LogprobStats:
        """Return the log-probabilities of targets after the states that a prepared pass returns."""
        states = self.run(prepared)
        return self._logprobs(states, targets.get())

    def pair_logprobs(self, states: Tensor, tree: PrefixTree) -> LogprobStats:
        """Return what `score` returns, without entropies, from the final states [R, E] of the tree's sources."""
        self._check_targets(tree)
        return self._logprobs(states, Upload(self.device).add(tree.targets).get())

    def _check_targets(self, tree: PrefixTree) -> None:
        """Check the ids to score on the host, since the op would wait for the device."""
        count, largest = self.head.weight.shape[0], int(tree.targets.max(initial=0))
        expect(largest < count, "targets", f"token ids below {count}", largest)

    def _logprobs(self, states: Tensor, targets: Tensor) -> LogprobStats:
        weight, bias = self.head.weight, self.head.bias
        blocks, narrow = isinstance(weight, BlockTensor), False
        if self.why_not_upcast is None and self.products == "bf16":
            states, weight = states.bfloat16(), weight if blocks else self._bf16_head
        else:
            narrow = states.dtype == torch.float32 and weight.dtype == torch.bfloat16
            weight = weight if narrow or blocks else weight.to(states.dtype)
        kernels = self.why_not_upcast is None and self.products in ("float32", "int16")
        return linear_logprob_stats(
            states,
            weight,
            targets,
            bias=None if bias is None else bias.to(states.dtype),
            scale=self.logit_scale,
            softcap=self.logit_softcap,
            entropy=False,
            check_ids=False,
            # "torch" has no bf16x3 and upcasts a narrower weight block by block.
            input_precision="float32" if kernels else "bf16x3" if self.products == "bf16x3" or narrow else None,
            impl="cpu" if kernels else "torch" if self.products == "torch" else "auto",
        )
