"""Recurrences over the paths of a packed tree, each from the state of the token before on its path."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fastreader.core.checks import expect
from fastreader.ops import extension, triton_support
from fastreader.ops.dispatch import choose
from fastreader.ops.extension import define
from fastreader.ops.operands import check_operands
from fastreader.ops.recurrent import chunks, fla, reference
from fastreader.ops.recurrent.plan import ScanPlan

MAX_SIZE = 4096  # of keys and values, and number of heads, in the C++ kernel
_MOST_KEYS = 256  # values of a key, or states of a channel, that a program of the Triton kernels holds


@define(
    "scan_chains(Tensor query, Tensor key, Tensor value, Tensor gate, Tensor? beta, Tensor? initial, Tensor chains, "
    "int[] levels, int rows, float scale, float? epsilon, str isa) -> (Tensor, Tensor)"
)
def _scan(query: Tensor, key: Tensor, value: Tensor, *others: Any) -> tuple[Tensor, Tensor]:
    return value.new_empty(value.shape), value.new_empty((others[5], value.shape[1], query.shape[2], value.shape[2]))


def gated_delta_rule(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    gate: Tensor,
    beta: Tensor,
    plan: ScanPlan,
    *,
    initial: Tensor | None = None,
    scale: float = 1.0,
    norm_epsilon: float | None = None,
    impl: str = "auto",
) -> tuple[Tensor, Tensor]:
    """Compute the gated delta rule (Yang et al. 2024, Kimi Team 2025).

    The state and the output of a token are ``S = exp(g) S``, ``S += beta k (v - S^T k)^T`` and ``o = S^T q``.

    Args:
        query, key: [T, Hk, D], floating; a head serves Hv / Hk consecutive heads of values.
        value: [T, Hv, Dv].
        gate: [T, Hv], or [T, Hv, D] for a gate a channel; logarithms of the decay, at most 0.
        beta: [T, Hv], weight of a token's update of the state.
        plan: the tree, and the tokens whose states are returned.
        initial: [S, Hv, D, Dv], states of texts before this tree; None without such texts.
        scale: factor on queries.
        norm_epsilon: first divide each query and key by the root of its sum of squares plus this; None does not.
        impl: "auto", or one of `IMPLEMENTATIONS` by name, which runs exactly that or raises. "fla" runs fla-core's
            kernels on CUDA in float16 or bfloat16; "auto" never chooses it.

    Returns:
        Outputs [T, Hv, Dv] in value's type, and states [K, Hv, D, Dv] after the kept tokens in float32, or float64 if
        an operand has it; they are computed in that type.

    Raises:
        InputError: if shapes or devices do not fit, or an input requires a gradient.
        UnsupportedImplementationError: if `impl` is unknown, or the named one cannot run here.
    """
    heads, size = _check_heads("gated_delta_rule", query, key, value, plan)
    tokens = len(plan)
    fits = gate.shape in ((tokens, heads), (tokens, heads, size)) and beta.shape == (tokens, heads)
    expect(fits, "gated_delta_rule", f"gate [T, {heads}] or [T, {heads}, {size}] and beta [T, {heads}]", (gate, beta))

    def prepared(query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        query, key = (x.to(torch.promote_types(x.dtype, torch.float32)) for x in (query, key))
        if norm_epsilon is not None:
            query, key = (reference.unit(x, norm_epsilon) for x in (query, key))
        return query * scale, key

    scans = _Scans(
        op="gated_delta_rule",
        torch=chunks.delta_rule_chunks,
        reference=reference.gated_delta_rule_reference,
        cpu=_scan_cpu,
        prepare=prepared,
        options={"scale": scale, "norm_epsilon": norm_epsilon},
    )
    operands = {"query": query, "key": key, "value": value, "gate": gate, "beta": beta}
    return _run(scans, impl, operands, plan, initial, shape=(heads, size, value.shape[2]), dtype=value.dtype)


def linear_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    gate: Tensor,
    plan: ScanPlan,
    *,
    initial: Tensor | None = None,
    impl: str = "auto",
) -> tuple[Tensor, Tensor]:
    """Compute ``S = exp(g) S + k v^T`` and ``o = S^T q``: Mamba-2 (Dao & Gu 2024), lightning attention, retention.

    Args:
        query, key, value, plan, impl: see `gated_delta_rule`.
        gate: [T, Hv], logarithms of the decay, at most 0.
        initial: [S, Hv, D, Dv], or None.

    Returns, Raises:
        As `gated_delta_rule`.
    """
    heads, size = _check_heads("linear_attention", query, key, value, plan)
    expect(gate.shape == (len(plan), heads), "linear_attention: gate", f"[T, {heads}]", gate)
    scans = _Scans(
        op="linear_attention",
        torch=chunks.decayed_attention_chunks,
        reference=reference.linear_attention_reference,
        cpu=lambda query, key, value, gate, *others, **given: _scan_cpu(
            query, key, value, gate, None, *others, **given
        ),
    )
    operands = {"query": query, "key": key, "value": value, "gate": gate}
    return _run(scans, impl, operands, plan, initial, shape=(heads, size, value.shape[2]), dtype=value.dtype)


def selective_scan(
    input: Tensor,
    step: Tensor,
    transition: Tensor,
    entry: Tensor,
    readout: Tensor,
    plan: ScanPlan,
    *,
    initial: Tensor | None = None,
    impl: str = "auto",
) -> tuple[Tensor, Tensor]:
    """Compute ``h = exp(dt A) h + dt x B^T`` and ``y = h C`` (Mamba, Gu & Dao 2023, algorithm 2).

    Args:
        input: x [T, D], floating.
        step: dt [T, D], positive.
        transition: A [D, N], negative.
        entry, readout: B and C, [T, N].
        plan, impl: see `gated_delta_rule`.
        initial: [S, D, N], states of texts before this tree; None without such texts.

    Returns:
        Outputs [T, D] in input's type, and states [K, D, N] after the kept tokens, as `gated_delta_rule`.

    Raises:
        As `gated_delta_rule`.
    """
    tokens, size, states = len(plan), input.shape[-1], transition.shape[-1]
    fits = input.shape == step.shape == (tokens, size) and transition.shape == (size, states)
    expect(
        fits and entry.shape == readout.shape == (tokens, states),
        "selective_scan",
        f"input and step [{tokens}, D], transition [D, N], entry and readout [{tokens}, N]",
        [list(x.shape) for x in (input, step, transition, entry, readout)],
    )
    operands = {"input": input, "step": step, "transition": transition, "entry": entry, "readout": readout}
    scans = _Scans("selective_scan", chunks.selective_scan_chunks, reference.selective_scan_reference)
    return _run(scans, impl, operands, plan, initial, shape=(size, states), dtype=input.dtype)


def linear_recurrence(
    input: Tensor, decay: Tensor, plan: ScanPlan, *, initial: Tensor | None = None, impl: str = "auto"
) -> tuple[Tensor, Tensor]:
    """Compute ``h = a h + x`` (the RG-LRU of Griffin, De et al. 2024, equation 4).

    Args:
        input: x [T, C], floating.
        decay: a [T, C], in [0, 1].
        plan, impl: see `gated_delta_rule`.
        initial: [S, C], states of texts before this tree; None without such texts.

    Returns:
        h [T, C] in input's type, and states [K, C] after the kept tokens, as `gated_delta_rule`.

    Raises:
        As `gated_delta_rule`.
    """
    fits = input.dim() == 2 and input.shape == decay.shape and len(input) == len(plan)
    expect(fits, "linear_recurrence", f"two [{len(plan)}, C]", f"{list(input.shape)} and {list(decay.shape)}")
    operands = {"input": input, "decay": decay}
    scans = _Scans("linear_recurrence", chunks.diagonal_chunks, reference.linear_recurrence_reference)
    return _run(scans, impl, operands, plan, initial, shape=(input.shape[1],), dtype=input.dtype)


def _check_heads(op: str, query: Tensor, key: Tensor, value: Tensor, plan: ScanPlan) -> tuple[int, int]:
    """Return the number of heads of values and the size of keys."""
    fits = query.dim() == value.dim() == 3 and query.shape == key.shape and len(query) == len(value) == len(plan)
    expect(
        fits and value.shape[1] % max(1, key.shape[1]) == 0,
        op,
        f"query and key [{len(plan)}, Hk, D], value [{len(plan)}, Hv, Dv] with Hv a multiple of Hk",
        [list(x.shape) for x in (query, key, value)],
    )
    return value.shape[1], key.shape[2]


class _Scans(NamedTuple):
    """The implementations of a recurrence, each of its operands, a plan and initial states.

    Attributes:
        op: its name, by which `recurrent.triton` holds the Triton kernels; these take operands of different types, the
            other implementations operands of one type.
        prepare: maps queries and keys to those that `torch` and `reference` take.
        options: further arguments of `cpu` and Triton.
    """

    op: str
    torch: Callable[..., tuple[Tensor, Tensor]]
    reference: Callable[..., tuple[Tensor, Tensor]]
    cpu: Callable[..., tuple[Tensor, Tensor]] | None = None
    prepare: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]] | None = None
    options: Mapping[str, Any] = MappingProxyType({})


def _scan_cpu(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    gate: Tensor,
    beta: Tensor | None,
    plan: ScanPlan,
    *,
    initial: Tensor | None,
    scale: float = 1.0,
    norm_epsilon: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Return outputs and kept states of `gated_delta_rule` in float32, or of `linear_attention` if beta is None."""
    walks = plan.walks
    levels = [number for level in walks.levels for number in level]
    before = None if initial is None else initial.float()
    options = len(plan.keep), scale, norm_epsilon, extension.instruction_set()
    out, kept = torch.ops.fastreader.scan_chains(query, key, value, gate, beta, before, walks.table, levels, *options)
    return out, kept if walks.repeats is None else kept[walks.repeats]


def _run(
    scans: _Scans,
    impl: str,
    operands: dict[str, Tensor],
    plan: ScanPlan,
    initial: Tensor | None,
    *,
    shape: tuple[int, ...],
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    """Check operands and initial states of one `shape`, and return outputs in `dtype` and the kept states."""
    op, first = scans.op, next(iter(operands.values()))
    check_operands(op, operands | ({} if initial is None else {"initial": initial}), ())
    for name, tensor in operands.items():
        expect(tensor.is_floating_point(), f"{op}: {name}", "a floating type", tensor.dtype)
    texts = 0 if initial is None else len(initial)
    fits = texts >= plan.initial and (initial is None or tuple(initial.shape[1:]) == shape)
    expect(fits, f"{op}: initial", f"[S, {', '.join(map(str, shape))}], S at least {plan.initial}", initial)
    wide = torch.float32
    for tensor in operands.values():
        wide = torch.promote_types(wide, tensor.dtype)

    def why_not_cpu() -> str | None:
        fits = min(shape) >= 1 and max(shape) <= MAX_SIZE
        size = None if fits else f"it takes 1 to {MAX_SIZE} heads and values, got {shape}"
        return extension.why_not(first.to(wide), (torch.float32,)) or size

    def why_not_triton() -> str | None:
        if len(shape) > 1 and shape[1] > _MOST_KEYS:
            return f"it takes keys, or states of a channel, of at most {_MOST_KEYS} values, got {shape[1]}"
        return triton_support.why_not_all(operands.values())

    chosen = choose(
        op,
        impl,
        first,
        cpu=None if scans.cpu is None else why_not_cpu,
        triton=why_not_triton,
        fla=(lambda: fla.why_not(operands)) if op in fla.OPS else None,
    )
    if chosen == "triton":
        from fastreader.ops.recurrent.triton import SCANS

        out, kept = SCANS[op](*operands.values(), plan, initial=initial, **scans.options)
        return out.to(dtype), kept
    if chosen == "fla":
        return fla.scan_fla(operands, plan, initial=initial, **scans.options)
    if chosen != "cpu" and scans.prepare is not None:
        operands["query"], operands["key"] = scans.prepare(operands["query"], operands["key"])
    options = scans.options if chosen == "cpu" else {}
    widened = (tensor.to(wide) for tensor in operands.values())
    out, kept = getattr(scans, chosen)(*widened, plan, initial=initial, **options)
    return out.to(dtype), kept
