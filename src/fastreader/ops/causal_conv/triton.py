# mypy: allow-untyped-decorators, allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls
"""causal_conv in Triton: the short depthwise convolution of Mamba (arXiv 2312.00752, section 3.4) over paths of a tree.

    out[t, c] = bias[c] + sum_d weight[c, K - 1 - d] x_d[t, c],    x_d[t] the input d tokens before t on its path

One program takes BLOCK_T tokens and BLOCK_C channels, and gathers the rows of each token's ancestors. Neighbours in a
chain share most of them, so they come from the cache.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from fastreader.ops.triton_support import ceil_div, interpreting, on_its_device

OPTIONS = {"BLOCK_T": 16, "BLOCK_C": 128, "num_warps": 4, "enable_fp_fusion": True}


@triton.jit(do_not_specialize=["tokens"])
def causal_conv_kernel(
    input_ptr,  # [T, C]
    weight_ptr,  # [C, K], contiguous
    ancestor_ptr,  # [T, K - 1], contiguous
    bias_ptr,  # [C] or None
    initial_ptr,  # [S * (K - 1), C], contiguous, or None
    out_ptr,  # [T, C], contiguous
    tokens,
    stride_input_token,
    stride_input_channel,
    CHANNELS: tl.constexpr,
    TAPS: tl.constexpr,
    SILU: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """Convolve a block of tokens and channels."""
    o_t = tl.program_id(0).to(tl.int64) * BLOCK_T + tl.arange(0, BLOCK_T)  # [T]
    o_c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)  # [C]
    m_t, m_c = o_t < tokens, o_c < CHANNELS
    m_tc = m_t[:, None] & m_c[None, :]  # [T, C]
    p_input = input_ptr + o_c[None, :].to(tl.int64) * stride_input_channel
    b_out = tl.zeros([BLOCK_T, BLOCK_C], tl.float32)  # [T, C]
    if bias_ptr is not None:
        b_out += tl.load(bias_ptr + o_c, mask=m_c, other=0.0).to(tl.float32)[None, :]
    for step in tl.static_range(TAPS):
        p_row = ancestor_ptr + o_t * (TAPS - 1) + (step - 1)
        b_row = o_t if step == 0 else tl.load(p_row, mask=m_t, other=-1)  # [T]
        b_weight = tl.load(weight_ptr + o_c * TAPS + (TAPS - 1 - step), mask=m_c, other=0.0).to(tl.float32)  # [C]
        m_row = (b_row >= 0)[:, None] & m_tc  # [T, C]
        b_x = tl.load(p_input + b_row[:, None] * stride_input_token, mask=m_row, other=0.0).to(tl.float32)  # [T, C]
        if initial_ptr is not None and step > 0:
            m_row = (b_row < -1)[:, None] & m_tc  # [T, C]
            p_initial = initial_ptr + (-2 - b_row)[:, None] * CHANNELS + o_c[None, :]
            b_x += tl.load(p_initial, mask=m_row, other=0.0).to(tl.float32)
        b_out += b_weight[None, :] * b_x
    if SILU:
        b_out = b_out / (1.0 + tl.exp(-b_out))
    tl.store(out_ptr + o_t[:, None] * CHANNELS + o_c[None, :], b_out.to(out_ptr.dtype.element_ty), mask=m_tc)


@on_its_device
def causal_conv_triton(
    input: Tensor,
    weight: Tensor,
    ancestors: Tensor,
    bias: Tensor | None,
    initial: Tensor | None,
    silu: bool = False,
) -> Tensor:
    """Return the convolution [T, C] for the arguments of `causal_conv`, with the activation if `silu`."""
    tokens, channels = input.shape
    # The interpreter truncates when it casts to bfloat16, so there the output is wider.
    out = torch.empty((tokens, channels), dtype=torch.float32 if interpreting() else input.dtype, device=input.device)
    if out.numel():
        grid = (ceil_div(tokens, OPTIONS["BLOCK_T"]), ceil_div(channels, OPTIONS["BLOCK_C"]))
        causal_conv_kernel[grid](
            input,
            weight.contiguous(),
            ancestors.contiguous(),
            None if bias is None else bias.contiguous(),
            None if initial is None else initial.contiguous(),
            out,
            tokens,
            *input.stride(),
            CHANNELS=channels,
            TAPS=weight.shape[1],
            SILU=silu,
            **OPTIONS,
        )
    return out.to(input.dtype)
