"""Products of inputs with massive values, whose blocks lose their other values in integers with one scale."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fastreader.models.rewriting.fused import JoinedLinear, UpcastLinear

_BLOCK = 32  # inputs that share a scale
_MASSIVE = 2.0**14  # times the other inputs; a power of two, so that no product rounds it


@torch.inference_mode()
def massive_difference(model: nn.Module) -> float:
    """Return how far kernels with massive inputs are off, relative to the exact product of the other inputs.

    What massive inputs alone give is subtracted, so that only the other inputs' results are compared.

    Args:
        model: whose products are compared, one of each shape, precision and type of weights.
    """
    worst, seen = 0.0, set()
    for module in model.modules():
        if not isinstance(module, (UpcastLinear, JoinedLinear)) or not module.in_kernels:
            continue
        weights = [layer.weight for layer in module.stored]
        kind = (module.precision, *((type(weight), weight.dtype, tuple(weight.shape)) for weight in weights))
        if kind not in seen:
            seen.add(kind)
            worst = max(worst, _difference(module, weights[0].shape[1], weights[0].device))
    return worst


def _difference(module: UpcastLinear | JoinedLinear, depth: int, device: torch.device) -> float:
    """Return the largest relative difference over rows with the massive inputs at each place of a block."""
    places = torch.arange(depth) % _BLOCK == torch.arange(_BLOCK)[:, None]
    signs = 1.0 - 2.0 * (torch.arange(depth) // _BLOCK % 2)
    massive = (places * signs * _MASSIVE).to(device)
    others = torch.randn(_BLOCK, depth, generator=torch.Generator().manual_seed(0)).masked_fill(places, 0.0).to(device)
    both, alone = torch.split(_outputs(module, torch.cat([massive + others, massive])), _BLOCK)
    found = both - alone
    with module.exact():
        want, bias = torch.split(_outputs(module, torch.cat([others, others.new_zeros(1, depth)])), _BLOCK)
    want = want - bias
    return float(((found - want).norm(dim=1) / want.norm(dim=1).clamp_min(1e-30)).max())


def _outputs(module: UpcastLinear | JoinedLinear, rows: Tensor) -> Tensor:
    out = module(rows)
    return (out if isinstance(out, Tensor) else torch.cat(out, dim=1)).double()
