"""Run each expert of a mixture on the tokens that the model's router sends it, one linear layer a matrix.

transformers keeps the experts of a layer in stacked parameters and names how they are laid out
(`use_experts_implementation`); routing, shared experts and the gate's function stay transformers' own code. Llama 4,
LongCat, DBRX and JetMoE have other layouts.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from fastreader.errors import InputError
from fastreader.models.machine.chunking import map_chunks
from fastreader.models.rewriting import surgery
from fastreader.ops.experts import CLAMPED, Gating, PackedExperts
from fastreader.ops.linear import BlockStack
from fastreader.ops.pointwise import ACTIVATIONS

_STACKED = {"gate_up_proj", "up_proj", "down_proj", "gate_up_proj_bias", "up_proj_bias", "down_proj_bias"}


class Expert(nn.Module):
    """One expert: two linear layers, whose weights are views of the stacked ones."""

    def __init__(self, inner: nn.Linear, down: nn.Linear) -> None:
        super().__init__()
        self.inner, self.down = inner, down


class SortedExperts(nn.Module):
    """The experts of a layer, each on all of its tokens at once.

    A token's results are summed in the order of the experts, so they do not depend on other tokens.

    Args:
        module: transformers' module, for which `matches` is true.
    """

    def __init__(self, module: Any) -> None:
        super().__init__()
        self.act_fn = getattr(module, "act_fn", None)
        self.own: tuple[Any, ...] = (surgery.without_weights(module),)  # for its functions
        self.has_gate = module.has_gate
        self._kernels = _Kernels()
        self.post_expert_norm = module.post_expert_norm if getattr(module, "has_post_expert_norm", False) else None
        name = "gate_up_proj" if module.has_gate else "up_proj"
        self.experts = nn.ModuleList(
            Expert(_layer(module, name, index), _layer(module, "down_proj", index))
            for index in range(len(module.down_proj))
        )

    @staticmethod
    def matches(module: nn.Module) -> bool:
        """Return whether a module holds experts in the layout that transformers' experts interface describes."""
        if not all(hasattr(module, name) for name in ("has_gate", "has_bias", "is_transposed", "_apply_gate")):
            return False
        parameters = _own(module)
        inner = "gate_up_proj" if module.has_gate else "up_proj"
        if not {inner, "down_proj"} <= parameters.keys() <= _STACKED:
            return False
        return all(tensor.dim() == (2 if name.endswith("_bias") else 3) for name, tensor in parameters.items())

    @staticmethod
    def routed(module: Any) -> int:
        """Return among how many experts a router chooses."""
        return len(module.down_proj)

    def forward(self, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
        """Map tokens [T, E] to [T, E].

        Args:
            hidden_states: the tokens.
            top_k_index: int64 [T, k], the experts of each; one past the last counts as none.
            top_k_weights: [T, k], the factor on each expert's result.
        """
        if hidden_states.dtype == torch.float32 and (kernels := self._kernels.of(self)) is not None:
            chosen, factors = top_k_index.view(len(hidden_states), -1), top_k_weights.float()
            return kernels(hidden_states, chosen, factors.view(len(hidden_states), -1))
        out = torch.zeros_like(hidden_states)
        chosen, factors = top_k_index.reshape(-1), top_k_weights.reshape(-1, 1).to(out.dtype)
        counts = torch.bincount(chosen, minlength=len(self.experts)).tolist()[: len(self.experts)]
        order = chosen.argsort(stable=True)[: sum(counts)]
        for expert, places in zip(self.experts, torch.split(order, counts), strict=True):
            if len(places):
                tokens = places // top_k_index.shape[-1]
                assert isinstance(expert, Expert)
                out.index_add_(0, tokens, self._run(expert, hidden_states[tokens]) * factors[places])
        return out

    def gate(self, product: Tensor) -> Tensor:
        """Map the first product of an expert, [T, 2I] or without a gate [T, I], to the second's input, [T, I]."""
        (own,) = self.own
        gated: Tensor = surgery.method_of(own, "_apply_gate")(product) if self.has_gate else own.act_fn(product)
        return gated

    def clamped(self) -> list[Gating]:
        """Return the gating that limits gates and values, if the model has its constants."""
        (own,) = self.own
        factor, limit = getattr(own, "alpha", None), getattr(own, "limit", None)
        return [Gating(CLAMPED, (factor, limit))] if isinstance(factor, float) and isinstance(limit, float) else []

    def _run(self, expert: Expert, rows: Tensor) -> Tensor:
        result = map_chunks(lambda part: expert.down(self.gate(expert.inner(part))), rows, 4 * rows.shape[-1])
        return result if self.post_expert_norm is None else self.post_expert_norm(result)


class _Kernels:
    """The op that runs the experts of a layer, once it is known to compute the same."""

    def __init__(self) -> None:
        self._made: PackedExperts | None = None
        self._of: Tensor | None = None  # the first weight as it was laid out then

    def of(self, experts: SortedExperts) -> PackedExperts | None:
        """Return it, or None if the kernels do not support these experts, or do not multiply their weights now."""
        weight = getattr(experts.experts[0].inner, "packed", None)  # of an UpcastLinear
        if weight is None:
            return None
        if self._of is not weight.packed.data:
            self._made, self._of = self._found(experts, weight.packed.width), weight.packed.data
        return self._made

    def _found(self, experts: SortedExperts, width: int) -> PackedExperts | None:
        if not experts.has_gate or experts.post_expert_norm is not None:
            return None
        rows = torch.randn(16, width, generator=torch.Generator().manual_seed(0)) * torch.logspace(-2, 2, 16)[:, None]
        want = experts.gate(rows)
        known = [*(Gating(name) for name in ACTIVATIONS), *experts.clamped()]
        gating = next((each for each in known if torch.allclose(each(rows), want, rtol=1e-5, atol=1e-6)), None)
        inner, down = ([getattr(each, name).packed for each in experts.experts] for name in ("inner", "down"))
        if gating is None or any(each is None for each in (*inner, *down)):
            return None
        try:
            return PackedExperts(inner, down, gating)
        except InputError:  # sizes that the kernels do not take
            return None


class GatedExperts(SortedExperts):
    """Gated experts, act(gate) * up: the base class for layouts that transformers does not describe."""

    def __init__(self, activation: Any, matrices: Iterable[tuple[Tensor, Tensor]]) -> None:
        nn.Module.__init__(self)
        self.act_fn, self.has_gate, self.post_expert_norm = activation, True, None
        self._kernels = _Kernels()
        self.experts = nn.ModuleList(Expert(_linear(inner), _linear(down)) for inner, down in matrices)

    def gate(self, product: Tensor) -> Tensor:
        """Map the first product of an expert, [T, 2I], to the second's input, [T, I]."""
        assert self.act_fn is not None
        gate, up = product.chunk(2, dim=-1)
        gated: Tensor = up * self.act_fn(gate)
        return gated

    def clamped(self) -> list[Gating]:
        """Return nothing: such layouts do not limit gates."""
        return []


class ScaledExperts(GatedExperts):
    """Llama 4's experts, which get every token scaled by the router, or zeros if it is not sent there."""

    def __init__(self, module: Any) -> None:
        stacks = zip(module.gate_up_proj, module.down_proj, strict=True)
        super().__init__(module.act_fn, ((inner.T, down.T) for inner, down in stacks))

    @staticmethod
    def matches(module: nn.Module) -> bool:
        """Return whether a module holds such experts: gate_up_proj [n, E, 2I] and down_proj [n, I, E]."""
        parameters = _own(module)
        if not _has_gated_stacks(module) or _arguments(module) != ["hidden_states"]:
            return False
        (count, size, both), down = parameters["gate_up_proj"].shape, parameters["down_proj"].shape
        return tuple(down) == (count, both // 2, size)

    def forward(self, hidden_states: Tensor) -> Tensor:  # type: ignore[override]
        """Map rows [experts * T, E], the tokens as each expert gets them, to [experts * T, E]."""
        given = hidden_states.view(len(self.experts), -1, hidden_states.shape[-1])
        out = torch.zeros_like(given)
        for expert, rows, results in zip(self.experts, given, out, strict=True):
            places = rows.any(-1).nonzero()[:, 0]
            if len(places):
                assert isinstance(expert, Expert)
                results[places] = self._run(expert, rows[places])
        return out.view_as(hidden_states)


class ExpertsOrNone(GatedExperts):
    """LongCat's experts, of which some return the token itself."""

    def __init__(self, module: Any) -> None:
        count = len(module.down_proj)  # the other stack has rows for those that compute nothing, too
        super().__init__(module.act_fn, zip(module.gate_up_proj[:count], module.down_proj, strict=True))

    @staticmethod
    def matches(module: nn.Module) -> bool:
        """Return whether a module holds such experts: gate_up_proj [n, 2I, E] and down_proj [m, E, I] with m <= n."""
        if not isinstance(getattr(module, "identity_expert", None), nn.Identity) or not _has_gated_stacks(module):
            return False
        return _arguments(module) == ["hidden_states", "top_k_index", "top_k_weights"]

    @staticmethod
    def routed(module: Any) -> int:
        """Return among how many experts a router chooses, those that compute nothing included."""
        return len(module.gate_up_proj)

    def forward(self, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
        """Map tokens [T, E] to [T, E], see `SortedExperts.forward`."""
        kept = (top_k_weights * (top_k_index >= len(self.experts))).sum(-1, keepdim=True)
        computed = super().forward(hidden_states, top_k_index, top_k_weights)
        return computed + hidden_states * kept.to(hidden_states.dtype)


class SplitExperts(GatedExperts):
    """DBRX's experts: three matrices, in which the experts follow each other."""

    def __init__(self, module: Any) -> None:
        gates, ups, downs = (
            weight.detach().unflatten(0, (module.num_experts, -1)) for weight in map(module.mlp.get_parameter, _SPLIT)
        )
        stacks = zip(gates, ups, downs, strict=True)
        super().__init__(module.mlp.activation_fn, ((torch.cat([gate, up]), down.T) for gate, up, down in stacks))

    @staticmethod
    def matches(module: nn.Module) -> bool:
        """Return whether a module holds such experts: mlp.w1, mlp.v1 and mlp.w2, [n * I, E] each."""
        inner = getattr(module, "mlp", None)
        if not isinstance(inner, nn.Module) or _own(inner).keys() != set(_SPLIT) or not hasattr(module, "num_experts"):
            return False
        return _arguments(module) == ["hidden_states", "top_k_index", "top_k_weights"]

    @staticmethod
    def routed(module: Any) -> int:
        """Return among how many experts a router chooses."""
        return int(module.num_experts)

    def forward(self, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
        """Map tokens [B, T, E] or [T, E] to [B, T, E], see `SortedExperts.forward`."""
        rows = hidden_states.reshape(-1, hidden_states.shape[-1])
        return super().forward(rows, top_k_index, top_k_weights).view(len(hidden_states), -1, rows.shape[-1])


class ParallelExperts(nn.Module):
    """JetMoE's experts: one matrix each, on tokens that come sorted by expert."""

    def __init__(self, module: Any) -> None:
        super().__init__()
        self.experts = nn.ModuleList(map(_linear, module.weight))

    @staticmethod
    def matches(module: nn.Module) -> bool:
        """Return whether a module holds such experts: weight [n, out, in]."""
        parameters = _own(module)
        if parameters.keys() != {"weight"} or parameters["weight"].dim() != 3:
            return False
        return _arguments(module) == ["inputs", "expert_size"]

    @staticmethod
    def routed(module: Any) -> int:
        """Return among how many experts a router chooses."""
        return len(module.weight)

    def forward(self, inputs: Tensor, expert_size: list[int]) -> Tensor:
        """Map rows [T, in], `expert_size` of them for each expert, to [T, out]."""
        parts = torch.split(inputs, expert_size)
        return torch.cat([expert(rows) for expert, rows in zip(self.experts, parts, strict=True) if len(rows)])


_SPLIT = ("w1", "v1", "w2")
_KINDS: tuple[Any, ...] = (SortedExperts, ScaledExperts, ExpertsOrNone, SplitExperts, ParallelExperts)


def kind_of(module: nn.Module) -> Any:
    """Return the class of modules that runs the experts which a module holds, or None if it holds none."""
    return next((kind for kind in _KINDS if kind.matches(module)), None)


def blocks(base: nn.Module) -> dict[str, int]:
    """Return among how many experts each module that holds some chooses, by the module's name: its router's outputs."""
    found = ((name.rpartition(".")[0], kind_of(module), module) for name, module in base.named_modules())
    return {name: kind.routed(module) for name, kind, module in found if kind is not None}


def _own(module: nn.Module) -> dict[str, Tensor]:
    return dict(module.named_parameters(recurse=False))


def _arguments(module: nn.Module) -> list[str]:
    return [*inspect.signature(module.forward).parameters]


def _has_gated_stacks(module: nn.Module) -> bool:
    """Return whether a module of no described layout has the stacks of gated experts, without biases."""
    parameters = _own(module)
    named = parameters.keys() == {"gate_up_proj", "down_proj"} and callable(getattr(module, "act_fn", None))
    return named and all(tensor.dim() == 3 for tensor in parameters.values()) and not hasattr(module, "has_gate")


def _layer(module: Any, name: str, index: int) -> nn.Linear:
    """Return an expert's matrix as a linear layer, without a copy."""
    stack = getattr(module, name)
    bias = getattr(module, f"{name}_bias")[index] if module.has_bias else None
    if isinstance(stack, BlockStack):
        return _linear(stack.parts[index], bias)
    return _linear(stack[index].T if module.is_transposed else stack[index], bias)


def _linear(weight: Tensor, bias: Tensor | None = None) -> nn.Linear:
    """Return a linear layer of a matrix [out, in], without a copy."""
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, device="meta")
    layer.weight = nn.Parameter(weight.detach(), requires_grad=False)
    if bias is not None:
        layer.bias = nn.Parameter(bias.detach(), requires_grad=False)
    return layer
