"""The experts of a mixture, one linear layer a matrix, run on the tokens that the model's router sends them.

transformers keeps the experts of a layer in stacked parameters and names how they are laid out
(`use_experts_implementation`); routing, shared experts and the gate's function stay transformers' own code. Llama 4 has
no such description: its experts get every token, scaled by the router, and zeros where a token is not theirs.
"""

from __future__ import annotations

import copy
import inspect
from typing import Any

import torch
from torch import Tensor, nn

from fastreader.models.chunking import map_chunks

_STACKED = {"gate_up_proj", "up_proj", "down_proj", "gate_up_proj_bias", "up_proj_bias", "down_proj_bias"}
_ROWS = "hidden_states"


def is_experts(module: nn.Module) -> bool:
    """Return whether a module holds experts that `replacement` knows how to run."""
    return _is_described(module) or _is_scaled(module)


def replacement(module: nn.Module) -> SortedExperts:
    """Return the module that runs the experts of one for which `is_experts` is true."""
    return ScaledExperts(module) if _is_scaled(module) else SortedExperts(module)


def _is_described(module: nn.Module) -> bool:
    """Return whether a module holds experts in the layout that transformers' experts interface describes."""
    if not all(hasattr(module, name) for name in ("has_gate", "has_bias", "is_transposed", "_apply_gate")):
        return False
    parameters = dict(module.named_parameters(recurse=False))
    inner = "gate_up_proj" if module.has_gate else "up_proj"
    if not {inner, "down_proj"} <= parameters.keys() <= _STACKED:
        return False
    return all(tensor.dim() == (2 if name.endswith("_bias") else 3) for name, tensor in parameters.items())


def _is_scaled(module: nn.Module) -> bool:
    """Return whether a module holds experts like Llama 4's: a gate and no biases, of all tokens once an expert."""
    if hasattr(module, "has_gate") or not callable(getattr(module, "act_fn", None)):
        return False
    parameters = dict(module.named_parameters(recurse=False))
    if parameters.keys() != {"gate_up_proj", "down_proj"} or any(t.dim() != 3 for t in parameters.values()):
        return False
    (count, size, both), down = parameters["gate_up_proj"].shape, parameters["down_proj"].shape
    return tuple(down) == (count, both // 2, size) and [*inspect.signature(module.forward).parameters] == [_ROWS]


def blocks(base: nn.Module) -> dict[str, int]:
    """Return the number of experts of each module that holds some beside their router, by the module's name."""
    return {
        name.rpartition(".")[0]: len(module.down_proj) for name, module in base.named_modules() if is_experts(module)
    }


class Expert(nn.Module):
    """One expert: two linear layers, whose weights are views of the stacked ones."""

    def __init__(self, inner: nn.Linear, down: nn.Linear) -> None:
        super().__init__()
        self.inner, self.down = inner, down


class SortedExperts(nn.Module):
    """The experts of a layer, each on all of its tokens at once.

    A token's results are summed in the order of the experts, so they do not depend on other tokens.

    Args:
        module: transformers' module, for which `is_experts` is true.
    """

    def __init__(self, module: Any) -> None:
        super().__init__()
        own = copy.copy(module)  # for its functions; it must not keep the stacked weights
        own._parameters, own._modules = {}, dict(module._modules)
        self.own: tuple[Any, ...] = (own,)
        self.act_fn = getattr(module, "act_fn", None)
        self.post_expert_norm = module.post_expert_norm if getattr(module, "has_post_expert_norm", False) else None
        self.has_gate = module.has_gate
        name = "gate_up_proj" if module.has_gate else "up_proj"
        self.experts = nn.ModuleList(
            Expert(_layer(module, name, index), _layer(module, "down_proj", index))
            for index in range(len(module.down_proj))
        )

    def forward(self, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
        """Map tokens [T, E] to [T, E].

        Args:
            hidden_states: the tokens.
            top_k_index: int64 [T, k], the experts of each; one past the last counts as none.
            top_k_weights: [T, k], the factor on each expert's result.
        """
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

    def _run(self, expert: Expert, rows: Tensor) -> Tensor:
        (own,) = self.own
        activate = own._apply_gate if self.has_gate else own.act_fn
        result = map_chunks(lambda part: expert.down(activate(expert.inner(part))), rows, 4 * rows.shape[-1])
        return result if self.post_expert_norm is None else self.post_expert_norm(result)


class ScaledExperts(SortedExperts):
    """The experts of a layer of Llama 4, each on the rows that are not zero.

    Args:
        module: transformers' module, whose matrices are [experts, in, out].
    """

    def __init__(self, module: Any) -> None:
        nn.Module.__init__(self)
        self.act_fn = module.act_fn
        self.experts = nn.ModuleList(
            Expert(_layer(module, "gate_up_proj", index), _layer(module, "down_proj", index))
            for index in range(len(module.down_proj))
        )

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

    def _run(self, expert: Expert, rows: Tensor) -> Tensor:
        def run(part: Tensor) -> Tensor:
            assert self.act_fn is not None
            gate, up = expert.inner(part).chunk(2, dim=-1)
            result: Tensor = expert.down(up * self.act_fn(gate))
            return result

        return map_chunks(run, rows, 4 * rows.shape[-1])


def _layer(module: Any, name: str, index: int) -> nn.Linear:
    """Return an expert's matrix as a linear layer, without a copy."""
    weight = getattr(module, name).detach()[index]
    weight = weight.T if getattr(module, "is_transposed", True) else weight
    bias = getattr(module, f"{name}_bias").detach()[index] if getattr(module, "has_bias", False) else None
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, device="meta")
    layer.weight = nn.Parameter(weight, requires_grad=False)
    if bias is not None:
        layer.bias = nn.Parameter(bias, requires_grad=False)
    return layer
