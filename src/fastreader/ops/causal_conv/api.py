"""causal_conv: the short depthwise convolution of hybrid readers, over the paths of a packed tree."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fastreader.core.checks import check_choice, expect
from fastreader.ops import extension, triton_support
from fastreader.ops.causal_conv.reference import causal_conv_reference
from fastreader.ops.dispatch import choose
from fastreader.ops.extension import define
from fastreader.ops.operands import check_operands

MAX_TAPS = 16  # of the C++ kernel


@define(
    "causal_conv(Tensor input, Tensor weight, Tensor ancestors, Tensor? bias, Tensor? initial, bool silu, str isa) "
    "-> Tensor"
)
def _conv(input: Tensor, *others: Any) -> Tensor:
    return input.new_empty(input.shape)


def causal_conv(
    input: Tensor,
    weight: Tensor,
    ancestors: Tensor,
    *,
    bias: Tensor | None = None,
    initial: Tensor | None = None,
    activation: str | None = None,
    check_ancestors: bool = True,
    impl: str = "auto",
) -> Tensor:
    """Compute ``out[t, c] = bias[c] + sum_d weight[c, K - 1 - d] x_d[t, c]``, x_d[t] the input d tokens before t.

    "Before" is on the path of a token, so each token gathers its K - 1 nearest ancestors. Inputs before the beginning
    of a text are 0. The convolution is that of Mamba (Gu & Dao 2023, section 3.4).

    Args:
        input: [T, C], floating.
        weight: [C, K]; column K - 1 weighs the token itself.
        ancestors: int64 [T, K - 1], see `core.chains.nearest_ancestors`.
        bias: [C]; None for none.
        initial: [S, K - 1, C], the last inputs of texts before this tree, oldest first; None without such texts.
        activation: of the sums, "silu" or None.
        check_ancestors: False if they are known to be rows of `input` or `initial`; on a GPU the check waits for it.
        impl: "auto", or one of `IMPLEMENTATIONS` by name, which runs exactly that or raises.

    Returns:
        [T, C] in input's type; sums are float32, or float64 if an input has it.

    Raises:
        InputError: if shapes do not fit, an ancestor is out of range, or an input requires a gradient.
        UnsupportedImplementationError: if `impl` is unknown, or the named one cannot run here.
    """
    fits = input.dim() == 2 and weight.dim() == 2 and weight.shape[0] == input.shape[1] and weight.shape[1] >= 1
    expect(fits, "causal_conv", "input [T, C] and weight [C, K]", f"{list(input.shape)} and {list(weight.shape)}")
    size, taps = input.shape[1], weight.shape[1] - 1
    expect(
        ancestors.dtype == torch.int64 and tuple(ancestors.shape) == (len(input), taps),
        "causal_conv: ancestors",
        f"int64 [{len(input)}, {taps}]",
        f"{ancestors.dtype} {list(ancestors.shape)}",
    )
    fits = (bias is None or bias.shape == (size,)) and (initial is None or tuple(initial.shape[1:]) == (taps, size))
    expect(fits, "causal_conv", f"bias [{size}] and initial [S, {taps}, {size}]", (bias, initial))
    operands = {"input": input, "weight": weight, "bias": bias, "initial": initial, "ancestors": ancestors}
    check_operands("causal_conv", operands, ())
    rows = 0 if initial is None else len(initial) * taps
    if check_ancestors and ancestors.numel():
        low, high = int(ancestors.min()), int(ancestors.max())
        expect(-2 - low < rows and high < len(input), "causal_conv: ancestors", "rows of input or initial", (low, high))
    if activation is not None:
        check_choice("activation", activation, ("silu",))

    def why_not_cpu() -> str | None:
        why = extension.why_not(input, (torch.float32,))
        if why is None and not (weight.dtype == torch.float32 and taps < MAX_TAPS):
            why = f"it takes float32 weights of at most {MAX_TAPS} taps, got {weight.dtype} and {taps + 1}"
        return why

    why_not_triton = partial(triton_support.why_not_all, (input, weight, bias, initial))
    chosen = choose("causal_conv", impl, input, cpu=why_not_cpu, triton=why_not_triton)
    if chosen == "triton":
        from fastreader.ops.causal_conv.triton import causal_conv_triton

        return causal_conv_triton(input, weight, ancestors, bias, initial, activation == "silu")
    if chosen == "cpu":
        tables = ancestors, None if bias is None else bias.float(), None if initial is None else initial.float()
        silu = activation == "silu"
        out: Tensor = torch.ops.fastreader.causal_conv(input, weight, *tables, silu, extension.instruction_set())
        return out
    run = causal_conv_reference if chosen == "reference" else _causal_conv_torch
    out = run(input, weight, ancestors, bias, initial)
    return (out if activation is None else F.silu(out)).to(input.dtype)


def _causal_conv_torch(
    input: Tensor, weight: Tensor, ancestors: Tensor, bias: Tensor | None, initial: Tensor | None
) -> Tensor:
    """Return the convolution as `causal_conv_reference` does."""
    taps = weight.shape[1] - 1
    dtype = torch.promote_types(torch.promote_types(input.dtype, weight.dtype), torch.float32)
    own, columns = input.to(dtype), weight.to(dtype).T.flip(0)  # that of the token itself first
    out = own * columns[0]
    for step in range(1, taps + 1):
        out[step:].addcmul_(own[:-step], columns[step])
    # Within a chain the nearest ancestors are the tokens before; the few others gather theirs.
    before = torch.arange(len(input), device=input.device)[:, None] - 1 - torch.arange(taps, device=input.device)
    others = (ancestors != before).any(1).nonzero()[:, 0]
    if len(others):
        near = rows_at(own, initial, ancestors[others])
        out[others] = own[others] * columns[0] + (near * columns[1:]).sum(1)
    return out if bias is None else out.add_(bias.to(dtype))


def rows_at(input: Tensor, initial: Tensor | None, places: Tensor) -> Tensor:
    """Return the rows [..., C] of inputs [T, C] and `initial` [S, n, C] at places [...].

    Place -1 gives zeros. Places are numbered as `core.chains.nearest_ancestors` does.
    """
    found = input[places.clamp_min(0)].masked_fill_((places < 0)[..., None], 0)
    if initial is None or not len(initial):
        return found
    # Chosen among, not written by a mask, whose number of places the host would wait for.
    before = initial.to(input.dtype).flatten(0, 1)[(-2 - places).clamp_min(0)]
    return torch.where((places < -1)[..., None], before, found)
