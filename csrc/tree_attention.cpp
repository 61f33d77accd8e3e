// fastreader::tree_attention on the CPU: packs keys and values once, then runs (tile, key head) tasks.

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <torch/library.h>

#include "parallel.h"

namespace fastreader {
namespace {

constexpr int64_t kEnoughTasks = 16; // with fewer tiles x heads, each segment of keys is a task
constexpr int64_t kPartBytes = 64 << 20; // at most this much memory for their states

const int32_t* indices(const at::Tensor& tensor, int64_t length, const char* name) {
  TORCH_CHECK(tensor.scalar_type() == at::kInt && tensor.dim() == 1 && tensor.is_contiguous() &&
                  (length < 0 || tensor.size(0) == length),
              "tree_attention: ", name, " must be contiguous int32 [", length, "], got ", tensor.scalar_type(), " ",
              tensor.sizes());
  return tensor.const_data_ptr<int32_t>();
}

int64_t segment_of(const AttentionArgs& a, int64_t slot) { return a.chunks[slot / kStrip].level / kSegment; }

// A schedule past the tensors would read foreign memory; one without all queries would leave some output unset.
void check_schedule(const AttentionArgs& a, int64_t blocks) {
  TORCH_CHECK(a.block_ptr[0] == 0 && a.block_ptr[a.tiles] == blocks, "tree_attention: block_ptr does not fit blocks");
  TORCH_CHECK(a.tiles > 0 && a.tile_start[0] == 0 && a.tile_stop[a.tiles - 1] == a.queries,
              "tree_attention: the tiles of the schedule do not cover the queries");
  for (int64_t t = 0; t < a.tiles; ++t) {
    TORCH_CHECK(a.tile_start[t] < a.tile_stop[t] && (t == 0 || a.tile_start[t] == a.tile_stop[t - 1]) &&
                    a.block_ptr[t] <= a.block_ptr[t + 1],
                "tree_attention: tile ", t, " of the schedule is out of order");
  }
  for (int64_t b = 0; b < blocks; ++b) {
    TORCH_CHECK(0 <= a.block_start[b] && a.block_start[b] < a.block_stop[b] && a.block_stop[b] <= a.slots &&
                    a.block_start[b] % kStrip == 0 && a.block_stop[b] % kStrip == 0,
                "tree_attention: block ", b, " of the schedule is out of range");
    TORCH_CHECK(segment_of(a, a.block_start[b]) == segment_of(a, a.block_stop[b] - 1),
                "tree_attention: block ", b, " of the schedule is in two segments");
  }
}

std::tuple<at::Tensor, at::Tensor> tree_attention(
    const at::Tensor& query_in, const at::Tensor& key_in, const at::Tensor& value_in, const at::Tensor& slot_key,
    const at::Tensor& slot_birth, const at::Tensor& slot_end, const at::Tensor& chunks, const at::Tensor& query_node,
    const std::optional<at::Tensor>& query_positions, const std::optional<at::Tensor>& key_positions,
    const at::Tensor& tile_start, const at::Tensor& tile_stop, const at::Tensor& block_ptr,
    const at::Tensor& block_start, const at::Tensor& block_stop, const at::Tensor& block_full, double scale,
    std::optional<int64_t> window, std::optional<double> softcap, const std::optional<at::Tensor>& sinks,
    const std::optional<at::Tensor>& slopes, const InputPrecision& input_precision,
    bool return_lse, c10::string_view isa_name) {
  const bool bf16x3 = is_bf16x3(input_precision);
  TORCH_CHECK(query_in.dim() == 3 && key_in.dim() == 3 && value_in.dim() == 3,
              "tree_attention: query, key and value must be [tokens, heads, size]");
  const at::ScalarType dtype = query_in.scalar_type();
  TORCH_CHECK((dtype == at::kFloat || (dtype == at::kBFloat16 && !bf16x3)) && key_in.scalar_type() == dtype &&
                  value_in.scalar_type() == dtype,
              "tree_attention: the CPU kernel takes float32 or bfloat16, in bf16x3 float32; got ", dtype);
  const at::Tensor query = with_contiguous_rows(query_in), key = with_contiguous_rows(key_in);
  const at::Tensor value = with_contiguous_rows(value_in);
  AttentionArgs a{};
  a.query = source_of(query, 1);
  a.key = source_of(key, 1);
  a.value = source_of(value, 1);
  a.queries = query.size(0);
  a.keys = key.size(0);
  a.heads = query.size(1);
  a.key_heads = key.size(1);
  a.size = query.size(2);
  a.value_size = value.size(2);
  TORCH_CHECK(key.size(2) == a.size && value.size(0) == a.keys && value.size(1) == a.key_heads &&
                  (a.key_heads == 0 ? a.heads == 0 : a.heads % a.key_heads == 0),
              "tree_attention: query, key and value do not fit: ", query.sizes(), key.sizes(), value.sizes());
  TORCH_CHECK(a.size <= kMaxHeadSize && a.value_size <= kMaxHeadSize, "tree_attention: head sizes above ", kMaxHeadSize);
  at::Tensor out = at::empty({a.queries, a.heads, a.value_size}, query.options());
  at::Tensor lse = at::full({return_lse ? a.queries : 0, a.heads}, -std::numeric_limits<float>::infinity(),
                            query.options().dtype(at::kFloat));
  a.slots = slot_key.size(0);
  if (out.numel() == 0 || a.slots == 0) {
    if (return_lse && sinks.has_value()) lse.copy_(sinks->expand_as(lse));
    return {out.zero_(), lse};
  }

  a.groups = a.heads / a.key_heads;
  a.padded_size = round_up(a.size, kStrip);
  a.padded_value_size = round_up(a.value_size, kStrip);
  const at::Tensor nodes = query_node.to(at::kInt).contiguous();
  a.query_node = indices(nodes, a.queries, "query_node");
  TORCH_CHECK(a.slots % kStrip == 0, "tree_attention: slots must be whole chunks, got ", a.slots);
  a.slot_key = indices(slot_key, a.slots, "slot_key");
  a.slot_birth = indices(slot_birth, a.slots, "slot_birth");
  a.slot_end = indices(slot_end, a.slots, "slot_end");
  for (int64_t slot = 0; slot < a.slots; ++slot) {
    TORCH_CHECK(-1 <= a.slot_key[slot] && a.slot_key[slot] < a.keys, "tree_attention: slot ", slot, " is out of range");
  }
  constexpr int64_t kFields = sizeof(Chunk) / sizeof(int32_t);
  TORCH_CHECK(chunks.scalar_type() == at::kInt && chunks.is_contiguous() && chunks.dim() == 2 &&
                  chunks.size(0) == a.slots / kStrip && chunks.size(1) == kFields,
              "tree_attention: chunks must be contiguous int32 [", a.slots / kStrip, ", ", kFields, "], got ",
              chunks.sizes());
  a.chunks = reinterpret_cast<const Chunk*>(chunks.const_data_ptr<int32_t>());
  a.sinks = head_values(sinks, a.heads, "tree_attention: sinks");
  a.slopes = head_values(slopes, a.heads, "tree_attention: slopes");
  if (window.has_value()) {
    TORCH_CHECK(*window > 0, "tree_attention: window must be at least 1, got ", *window);
    a.window = std::min<int64_t>(*window, std::numeric_limits<int32_t>::max());
  }
  if (window.has_value() || slopes.has_value()) {
    TORCH_CHECK(query_positions.has_value() && key_positions.has_value(),
                "tree_attention: a window and slopes need positions");
    a.query_positions = indices(*query_positions, a.queries, "query_positions");
    a.key_positions = indices(*key_positions, a.keys, "key_positions");
  }
  a.scale = static_cast<float>(scale);
  a.softcap = static_cast<float>(softcap.value_or(0));
  a.tiles = tile_start.size(0);
  const int64_t blocks = block_start.size(0);
  a.tile_start = indices(tile_start, a.tiles, "tile_start");
  a.tile_stop = indices(tile_stop, a.tiles, "tile_stop");
  a.block_ptr = indices(block_ptr, a.tiles + 1, "block_ptr");
  a.block_start = indices(block_start, blocks, "block_start");
  a.block_stop = indices(block_stop, blocks, "block_stop");
  TORCH_CHECK(block_full.scalar_type() == at::kBool && block_full.is_contiguous() && block_full.numel() == blocks,
              "tree_attention: block_full must be contiguous bool [", blocks, "]");
  a.block_full = block_full.const_data_ptr<bool>();
  check_schedule(a, blocks);
  for (int64_t t = 0; t < a.tiles; ++t) {
    a.tile_rows = std::max(a.tile_rows, round_up((a.tile_stop[t] - a.tile_start[t]) * a.groups, kStrip));
  }
  TORCH_CHECK(a.tile_rows <= kMaxStrips * kStrip, "tree_attention: a tile of the schedule has ", a.tile_rows,
              " rows, at most ", kMaxStrips * kStrip, " are possible");
  for (int64_t b = 0; b < blocks; ++b) {
    a.key_block = std::max<int64_t>(a.key_block, a.block_stop[b] - a.block_start[b]);
  }
  a.threads = at::get_num_threads();
  a.out = out.data_ptr();
  a.out_bf16 = dtype == at::kBFloat16;
  a.lse = return_lse ? lse.mutable_data_ptr<float>() : nullptr;

  const Mode mode = bf16x3 ? Mode::bf16x3 : dtype == at::kBFloat16 ? Mode::bf16 : Mode::f32;
  const Kernels& kernels = kernels_for(resolve_isa(std::string(isa_name)), mode);
  const int64_t row_bytes = a.key_heads * a.slots * kernels.operand_bytes;
  const at::Tensor packed_keys = at::empty({row_bytes * a.padded_size}, at::kByte);
  const at::Tensor packed_values = at::empty({row_bytes * a.padded_value_size}, at::kByte);
  a.packed_keys = packed_keys.data_ptr();
  a.packed_values = packed_values.data_ptr();
  const int64_t count = a.slots / kStrip;
  at::parallel_for(0, a.key_heads * count, 16, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) kernels.pack_keys(a, i / count, i % count);
  });
  const int64_t tasks = a.tiles * a.key_heads;
  at::Tensor sums, maximum, total;
  if (tasks < kEnoughTasks) {
    int64_t parts = 0;
    for (int64_t b = 0; b < blocks; ++b) parts = std::max(parts, segment_of(a, a.block_start[b]) + 1);
    const int64_t rows = tasks * parts * a.tile_rows;
    if (parts > 1 && rows * a.padded_value_size * static_cast<int64_t>(sizeof(float)) <= kPartBytes) {
      a.parts = parts;
      const auto options = query.options().dtype(at::kFloat);
      sums = at::empty({rows * a.padded_value_size}, options);
      maximum = at::empty({rows}, options);
      total = at::empty({2 * rows}, options);
      a.part_sums = sums.mutable_data_ptr<float>();
      a.part_maximum = maximum.mutable_data_ptr<float>();
      a.part_total = total.mutable_data_ptr<float>();
    }
  }
  const int64_t bytes = kernels.attend_workspace(a);
  if (a.parts == 0) {
    run_tasks(kernels, tasks, bytes, [&](int64_t i, void* workspace) {
      kernels.attend(a, i % a.tiles, i / a.tiles, -1, workspace);
    });
    return {out, lse};
  }
  run_tasks(kernels, tasks * a.parts, bytes, [&](int64_t i, void* workspace) {
    kernels.attend(a, i / a.parts % a.tiles, i / a.parts / a.tiles, i % a.parts, workspace);
  });
  run_tasks(kernels, tasks, bytes, [&](int64_t i, void* workspace) {
    kernels.join(a, i % a.tiles, i / a.tiles, workspace);
  });
  return {out, lse};
}

} // namespace

TORCH_LIBRARY_IMPL(fastreader, CPU, m) { m.impl("tree_attention", &tree_attention); }

} // namespace fastreader
