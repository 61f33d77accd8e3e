# mypy: allow-untyped-decorators, allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls
"""tree_attention in Triton: online softmax over the key blocks that the schedule gives a tile of queries.

    out_i = sum_j exp(s_ij - lse_i) v_j,    lse_i = log sum_j exp(s_ij),    j <= query_node[i] < subtree_end[j]

One program takes a tile of consecutive query tokens and one key head. The query heads of that key head are packed
as rows (row r is token r // HEADS_PACKED, head r % HEADS_PACKED), so that its keys are read once for all of them. The
tile's blocks come in three runs: whole ones, which every query sees, without a mask; limited ones, of which a query
sees the keys up to its own node, since no subtree ends before the tile does; and general ones, where each key's
subtree decides. With few tiles (decoding), the runs are split over programs and the partial states merged afterwards.

The softmax is in base 2, scores in units of log 2: exp2(s * log2(e)) is one instruction, exp(s) two. Sums, maxima
and the accumulator are float32. No length is a constexpr or specialised, so another tree compiles nothing.
"""

from __future__ import annotations

import triton
import triton.language as tl

from fastreader.ops.attention_scores import capped, with_sink, with_slopes


@triton.jit
def _load_tile(ptr, start, stride_token, o_tile, m_tile, ALL: tl.constexpr):
    """Load the tile at offsets o_tile from token `start`, masked unless ALL of it exists.

    Only the tile's address has 64 bits; the offsets inside fit 32, which saves registers.
    """
    p_tile = ptr + start.to(tl.int64) * stride_token + o_tile
    if ALL:
        return tl.load(p_tile)
    return tl.load(p_tile, mask=m_tile, other=0.0)


@triton.jit
def _dot(b_x, b_y, b_sum, SPLIT: tl.constexpr, UPCAST: tl.constexpr):
    """Return b_sum plus the product, of float32 operands as sums of two bfloat16 terms (small ones first) if SPLIT."""
    if not SPLIT:
        return tl.dot(b_x, b_y, b_sum, input_precision="ieee")
    b_x_high, b_y_high = b_x.to(tl.bfloat16), b_y.to(tl.bfloat16)
    b_x_low, b_y_low = (b_x - b_x_high.to(tl.float32)).to(tl.bfloat16), (b_y - b_y_high.to(tl.float32)).to(tl.bfloat16)
    if UPCAST:  # the interpreter cannot multiply bfloat16
        b_x_high, b_y_high = b_x_high.to(tl.float32), b_y_high.to(tl.float32)
        b_x_low, b_y_low = b_x_low.to(tl.float32), b_y_low.to(tl.float32)
    b_sum = tl.dot(b_x_low, b_y_high, b_sum, input_precision="ieee")
    b_sum = tl.dot(b_x_high, b_y_low, b_sum, input_precision="ieee")
    return tl.dot(b_x_high, b_y_high, b_sum, input_precision="ieee")


@triton.jit
def _online_softmax(
    b_s, b_v, b_acc, b_max_log2, b_sum, scale_log2, GUARD: tl.constexpr, SPLIT: tl.constexpr, UPCAST: tl.constexpr
):
    """Fold the scores [M, N] and values [N, Dv] of one block into the running state of each row."""
    b_new_log2 = tl.maximum(b_max_log2, tl.max(b_s, 1) * scale_log2)  # [M]
    b_base_log2 = b_new_log2
    if GUARD:  # a row that has seen nothing yet: exp2(-inf - 0) is 0, exp2(-inf - -inf) would be NaN
        b_base_log2 = tl.where(b_new_log2 == float("-inf"), 0.0, b_new_log2)
    b_p = tl.exp2(b_s * scale_log2 - b_base_log2[:, None])  # [M, N]
    b_shrink = tl.exp2(b_max_log2 - b_base_log2)  # [M]
    b_sum = b_sum * b_shrink + tl.sum(b_p, 1)
    b_acc = _dot(b_p.to(b_v.dtype), b_v, b_acc * b_shrink[:, None], SPLIT, UPCAST)  # [M, Dv]
    return b_acc, b_new_log2, b_sum


@triton.jit(
    do_not_specialize=["tokens", "num_splits", "window"],
    do_not_specialize_on_alignment=["subtree_end_ptr", "query_node_ptr", "query_position_ptr", "key_position_ptr"],
)
def tree_attention_kernel(
    query_ptr,  # [Tq, Hq, D]
    key_ptr,  # [Tk, Hk, D]
    value_ptr,  # [Tk, Hk, Dv]
    key_desc,  # [Tk, Hk x D] for the tensor memory accelerator, or None
    value_desc,  # [Tk, Hk x Dv] likewise
    out_ptr,  # [S, Tq, Hq, Dv]
    lse_ptr,  # [S, Tq, Hq] or None
    subtree_end_ptr,  # [Tk]
    query_node_ptr,  # [Tq]
    query_position_ptr,  # [Tq] or None
    key_position_ptr,  # [Tk] or None
    sink_ptr,  # [Hq] or None
    slope_ptr,  # [Hq] or None
    tile_ptr,  # int32 [tiles, 6]: first token, end token, first block, first limited and general block, end block
    block_start_ptr,  # int32 [blocks + 1]
    block_stop_ptr,  # int32 [blocks + 1]
    tokens,
    num_splits,
    heads_a_key,
    scale,
    scale_log2,
    softcap,
    window,
    stride_query_token,
    stride_query_head,
    stride_query_size,
    stride_key_token,
    stride_key_head,
    stride_key_size,
    stride_value_token,
    stride_value_head,
    stride_value_size,
    stride_out_token,
    stride_out_head,
    stride_lse_token,
    D: tl.constexpr,
    DV: tl.constexpr,
    HEADS_PACKED: tl.constexpr,
    HEAD_CHUNKS: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFTCAP: tl.constexpr,
    UPCAST: tl.constexpr,
    SPLIT: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_REST: tl.constexpr,
    BLOCK_DV: tl.constexpr,
):
    """Run program (tile, key head x chunk of its query heads, split of the tile's blocks)."""
    tile = tl.program_id(0).to(tl.int64)
    key_head = (tl.program_id(1) // HEAD_CHUNKS).to(tl.int64)
    chunk = tl.program_id(1) % HEAD_CHUNKS
    split = tl.program_id(2)
    token_first = tl.load(tile_ptr + tile * 6)
    token_end = tl.load(tile_ptr + tile * 6 + 1)
    block_first = tl.load(tile_ptr + tile * 6 + 2)
    block_limited = tl.load(tile_ptr + tile * 6 + 3)
    block_general = tl.load(tile_ptr + tile * 6 + 4)
    block_end = tl.load(tile_ptr + tile * 6 + 5)
    share = tl.cdiv(block_end - block_first, num_splits)
    block_first = tl.minimum(block_first + split * share, block_end)
    block_end = tl.minimum(block_first + share, block_end)
    block_limited = tl.minimum(tl.maximum(block_limited, block_first), block_end)
    block_general = tl.minimum(tl.maximum(block_general, block_first), block_end)

    o_m = tl.arange(0, BLOCK_M)  # [M]
    o_n = tl.arange(0, BLOCK_N)  # [N]
    o_d = tl.arange(0, BLOCK_D)  # [D]
    o_dv = tl.arange(0, BLOCK_DV)  # [Dv]
    o_token = o_m // HEADS_PACKED  # [M], from the tile's first
    o_group = chunk * HEADS_PACKED + o_m % HEADS_PACKED  # [M], from the key head's first
    m_m = (o_token < token_end - token_first) & (o_group < heads_a_key)  # [M]
    m_d = o_d < D  # [D]
    o_rest = BLOCK_D + tl.arange(0, BLOCK_REST if BLOCK_REST else 16)  # [D'], columns after the first BLOCK_D
    m_rest = o_rest < D  # [D']
    m_dv = o_dv < DV  # [Dv]

    query_ptr += token_first.to(tl.int64) * stride_query_token + key_head * heads_a_key * stride_query_head
    o_query = (o_token * stride_query_token + o_group * stride_query_head)[:, None] + o_d[None, :] * stride_query_size
    b_q = tl.load(query_ptr + o_query, mask=m_m[:, None] & m_d[None, :], other=0.0)  # [M, D]
    if BLOCK_REST:
        o_row = (o_token * stride_query_token + o_group * stride_query_head)[:, None]
        p_rest = query_ptr + o_row + o_rest[None, :] * stride_query_size
        b_q_rest = tl.load(p_rest, mask=m_m[:, None] & m_rest[None, :], other=0.0)  # [M, D']
    b_query_node = tl.load(query_node_ptr + token_first + o_token, mask=m_m, other=-1).to(tl.int32)  # [M]
    if query_position_ptr is not None:
        b_query_position = tl.load(query_position_ptr + token_first + o_token, mask=m_m, other=0)  # [M]
    if WINDOW:
        b_oldest = b_query_position - window  # [M]
    if slope_ptr is not None:
        b_slope = tl.load(slope_ptr + key_head * heads_a_key + o_group, mask=m_m, other=0.0)  # [M]
    if UPCAST:
        b_q = b_q.to(tl.float32)
        if BLOCK_REST:
            b_q_rest = b_q_rest.to(tl.float32)
    # Tiles that descriptors load reach beyond their block; the keys there are masked like others out of sight.
    key_column, value_column = (key_head * D).to(tl.int32), (key_head * DV).to(tl.int32)
    key_ptr += key_head * stride_key_head
    value_ptr += key_head * stride_value_head
    o_k = o_n[None, :] * stride_key_token + o_d[:, None] * stride_key_size  # [D, N]
    o_k_rest = o_n[None, :] * stride_key_token + o_rest[:, None] * stride_key_size  # [D', N]
    o_v = o_n[:, None] * stride_value_token + o_dv[None, :] * stride_value_size  # [N, Dv]

    b_max_log2 = tl.full([BLOCK_M], float("-inf"), tl.float32)  # [M]
    b_sum = tl.zeros([BLOCK_M], tl.float32)  # [M]
    b_acc = tl.zeros([BLOCK_M, BLOCK_DV], tl.float32)  # [M, Dv]

    # The start of the next block is loaded one iteration before the loads whose addresses need it.
    next_start = tl.load(block_start_ptr + block_first)
    for block in range(block_first, block_limited):
        start = next_start
        next_start = tl.load(block_start_ptr + block + 1)
        if key_desc is not None:
            b_k, b_v = key_desc.load([start, key_column]).T, value_desc.load([start, value_column])
        else:
            b_k = _load_tile(key_ptr, start, stride_key_token, o_k, m_d[:, None], D >= BLOCK_D)  # [D, N]
            b_v = _load_tile(value_ptr, start, stride_value_token, o_v, m_dv[None, :], DV == BLOCK_DV)  # [N, Dv]
        if UPCAST:
            b_k, b_v = b_k.to(tl.float32), b_v.to(tl.float32)
        b_s = _dot(b_q, b_k, tl.zeros([BLOCK_M, BLOCK_N], tl.float32), SPLIT, UPCAST)  # [M, N]
        if BLOCK_REST:
            b_k_rest = _load_tile(key_ptr, start, stride_key_token, o_k_rest, m_rest[:, None], False)  # [D', N]
            b_s = _dot(b_q_rest, b_k_rest.to(b_q_rest.dtype), b_s, SPLIT, UPCAST)
        b_s = capped(b_s, scale, softcap, SOFTCAP)
        if slope_ptr is not None:
            b_key_position = tl.load(key_position_ptr + start + o_n)  # [N]
            b_s = with_slopes(b_s, scale, b_slope, b_key_position, b_query_position, SOFTCAP)
        b_acc, b_max_log2, b_sum = _online_softmax(b_s, b_v, b_acc, b_max_log2, b_sum, scale_log2, False, SPLIT, UPCAST)

    if not WINDOW:  # with a window the schedule has no limited blocks
        next_start, next_stop = tl.load(block_start_ptr + block_limited), tl.load(block_stop_ptr + block_limited)
        for block in range(block_limited, block_general):
            start, stop = next_start, next_stop
            next_start, next_stop = tl.load(block_start_ptr + block + 1), tl.load(block_stop_ptr + block + 1)
            m_n = o_n < stop - start  # [N]
            if key_desc is not None:
                b_k, b_v = key_desc.load([start, key_column]).T, value_desc.load([start, value_column])
            else:
                m_k = m_n[None, :] if D >= BLOCK_D else m_n[None, :] & m_d[:, None]
                m_v = m_n[:, None] if DV == BLOCK_DV else m_n[:, None] & m_dv[None, :]
                b_k = _load_tile(key_ptr, start, stride_key_token, o_k, m_k, False)  # [D, N]
                b_v = _load_tile(value_ptr, start, stride_value_token, o_v, m_v, False)  # [N, Dv]
            if UPCAST:
                b_k, b_v = b_k.to(tl.float32), b_v.to(tl.float32)
            b_s = _dot(b_q, b_k, tl.zeros([BLOCK_M, BLOCK_N], tl.float32), SPLIT, UPCAST)  # [M, N]
            if BLOCK_REST:
                m_k_rest = m_n[None, :] & m_rest[:, None]  # [D', N]
                b_k_rest = _load_tile(key_ptr, start, stride_key_token, o_k_rest, m_k_rest, False)  # [D', N]
                b_s = _dot(b_q_rest, b_k_rest.to(b_q_rest.dtype), b_s, SPLIT, UPCAST)
            b_s = capped(b_s, scale, softcap, SOFTCAP)
            if slope_ptr is not None:
                b_key_position = tl.load(key_position_ptr + start + o_n, mask=m_n, other=0)  # [N]
                b_s = with_slopes(b_s, scale, b_slope, b_key_position, b_query_position, SOFTCAP)
            b_limit = tl.minimum(b_query_node + 1, stop) - start  # [M], keys of the block that each row sees
            b_s = tl.where(o_n[None, :] < b_limit[:, None], b_s, float("-inf"))
            b_acc, b_max_log2, b_sum = _online_softmax(
                b_s, b_v, b_acc, b_max_log2, b_sum, scale_log2, True, SPLIT, UPCAST
            )

    # Without a window these blocks are few, and get no memory to load ahead; large heads would need registers instead.
    next_start = tl.load(block_start_ptr + block_general)
    for block in tl.range(block_general, block_end, num_stages=1 if BLOCK_D <= 128 and not WINDOW else None):
        start = next_start
        next_start = tl.load(block_start_ptr + block + 1)
        m_n = o_n < tl.load(block_stop_ptr + block) - start  # [N]
        if key_desc is not None:
            b_k, b_v = key_desc.load([start, key_column]).T, value_desc.load([start, value_column])
        else:
            m_k = m_n[None, :] & m_d[:, None]  # [D, N]
            b_k = _load_tile(key_ptr, start, stride_key_token, o_k, m_k, False)  # [D, N]
            m_v = m_n[:, None] & m_dv[None, :]  # [N, Dv]
            b_v = _load_tile(value_ptr, start, stride_value_token, o_v, m_v, False)  # [N, Dv]
        o_key = start + o_n  # [N]
        b_subtree_end = tl.load(
            subtree_end_ptr + o_key, mask=m_n, other=0
        )  # [N]; 0 past the block's end, where no key is visible
        m_mn = (o_key[None, :] <= b_query_node[:, None]) & (b_query_node[:, None] < b_subtree_end[None, :])  # [M, N]
        if key_position_ptr is not None:
            b_key_position = tl.load(key_position_ptr + o_key, mask=m_n, other=0)  # [N]
        if WINDOW:
            m_mn = m_mn & (b_key_position[None, :] > b_oldest[:, None])
        if UPCAST:
            b_k, b_v = b_k.to(tl.float32), b_v.to(tl.float32)
        b_s = _dot(b_q, b_k, tl.zeros([BLOCK_M, BLOCK_N], tl.float32), SPLIT, UPCAST)  # [M, N]
        if BLOCK_REST:
            m_k_rest = m_n[None, :] & m_rest[:, None]  # [D', N]
            b_k_rest = _load_tile(key_ptr, start, stride_key_token, o_k_rest, m_k_rest, False)  # [D', N]
            b_s = _dot(b_q_rest, b_k_rest.to(b_q_rest.dtype), b_s, SPLIT, UPCAST)
        b_s = capped(b_s, scale, softcap, SOFTCAP)
        if slope_ptr is not None:
            b_s = with_slopes(b_s, scale, b_slope, b_key_position, b_query_position, SOFTCAP)
        b_s = tl.where(m_mn, b_s, float("-inf"))
        b_acc, b_max_log2, b_sum = _online_softmax(b_s, b_v, b_acc, b_max_log2, b_sum, scale_log2, True, SPLIT, UPCAST)

    if sink_ptr is not None:
        b_sink = tl.load(sink_ptr + key_head * heads_a_key + o_group, mask=m_m, other=float("-inf"))  # [M], nats
        b_acc, b_max_log2, b_sum = with_sink(b_acc, b_max_log2, b_sum, b_sink, split)

    m_empty = b_sum == 0.0  # [M]
    b_out = b_acc / tl.where(m_empty, 1.0, b_sum)[:, None]  # [M, Dv]
    row = split * tokens.to(tl.int64) + token_first  # in the parts, laid end to end
    out_ptr += row * stride_out_token + key_head * heads_a_key * stride_out_head
    o_out = (o_token * stride_out_token + o_group * stride_out_head)[:, None] + o_dv[None, :]  # [M, Dv]
    tl.store(out_ptr + o_out, b_out.to(out_ptr.dtype.element_ty), mask=m_m[:, None] & m_dv[None, :])
    if lse_ptr is not None:
        b_lse = (b_max_log2 + tl.log2(b_sum)) * 0.6931471805599453  # [M], nats; -inf if nothing was seen
        lse_ptr += row * stride_lse_token + key_head * heads_a_key
        tl.store(lse_ptr + o_token * stride_lse_token + o_group, b_lse, mask=m_m)
