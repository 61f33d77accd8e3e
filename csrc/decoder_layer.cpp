// fastreader::decoder_layer_in and decoder_layer_out_ on the CPU: a decoder layer before and after attention.
//
// A block of rows goes through everything in one thread, and its values stay in that core's caches: no thread waits
// for the slowest one between two products, and nothing wider than a query is written to memory. With too few rows for
// one block per thread, as when texts are written, the threads share each product instead, so that each weight is read
// once. Both ways give the same bits.

#include "decoder_layer.h"

#include <torch/library.h>

namespace fastreader {
namespace {

constexpr int64_t kBlocks[] = {256, 128, 64}; // rows; larger blocks read the weights less often
constexpr int64_t kTasksPerThread = 4;
constexpr int64_t kMostHeads = 1 << 16, kMostInner = 1 << 28; // numbers of bytes do not overflow
constexpr int64_t kRowsAThread = 256; // with fewer, sharing each product is faster

bool shared_by_threads(int64_t rows) { return rows < kRowsAThread * at::get_num_threads(); }

// Return the largest block that leaves several for every thread, so that the others wait little for the last one.
int64_t block_of(int64_t rows) {
  for (const int64_t block : kBlocks) {
    if (rows / block >= kTasksPerThread * at::get_num_threads()) return block;
  }
  return kStrip;
}

// Memory of a thread, divided into pieces.
struct Pieces {
  int64_t bytes = 0;
  int64_t add(int64_t size) {
    const int64_t at = bytes;
    bytes += round_up(size, 64);
    return at;
  }
};

// Set up a product that one thread computes whole for its own rows.
void whole(LinearArgs& a, int64_t block) {
  a.row_block = block;
  a.slice_strips = a.strips;
}

at::Tensor vector_of(const at::Tensor& weight, int64_t size, const char* name) {
  TORCH_CHECK(weight.dim() == 1 && weight.size(0) == size && weight.scalar_type() == at::kFloat, name,
              " must be float32 [", size, "], got ", weight.sizes(), " ", weight.scalar_type());
  return weight.contiguous();
}

HeadNorm head_norm_of(const std::optional<at::Tensor>& weight, int64_t heads, int64_t size, double epsilon) {
  if (!weight.has_value()) return {};
  TORCH_CHECK(weight->numel() == size || weight->numel() == heads * size,
              "decoder_layer_in: a norm of heads must be that of one head or of all, got ", weight->sizes());
  return {vector_of(*weight, weight->numel(), "decoder_layer_in: norm of heads"), static_cast<float>(epsilon)};
}

} // namespace

void check_stream(const at::Tensor& stream, const char* op) {
  TORCH_CHECK(stream.dim() == 2 && stream.scalar_type() == at::kFloat && stream.stride(1) == 1, op,
              ": the residual stream must be float32 [T, E] of contiguous rows, got ", stream.sizes(), " ",
              stream.scalar_type());
}

void HeadNorm::operator()(const Kernels& kernels, float* first, int64_t rows, int64_t stride, int64_t features) const {
  if (!weight.defined()) return;
  const int64_t size = weight.size(0);
  for (int64_t r = 0; r < rows; ++r) {
    float* row = first + r * stride;
    const NormArgs norm{row, size, size, weight.const_data_ptr<float>(), epsilon, row, size, false};
    kernels.rms_norm(norm, 0, features / size);
  }
}

void StreamNorm::operator()(const Kernels& kernels, const at::Tensor& stream, int64_t begin, int64_t count,
                            void* out) const {
  const int64_t size = stream.size(1), stride = stream.stride(0);
  const float* first = stream.const_data_ptr<float>() + begin * stride;
  kernels.rms_norm({first, stride, size, weight.const_data_ptr<float>(), epsilon, out, size, to_bf16}, 0, count);
}

Source StreamNorm::all(const Kernels& kernels, const at::Tensor& stream, Buffer& buffer) const {
  const int64_t rows = stream.size(0), size = stream.size(1), row_bytes = size * (to_bf16 ? 2 : 4);
  char* const first = buffer.of(rows * row_bytes);
  run_blocks(kernels, rows, kStrip, 0, [&](int64_t begin, int64_t count, char*) {
    (*this)(kernels, stream, begin, count, first + begin * row_bytes);
  });
  return {first, to_bf16, size, 0};
}

Angles Angles::of(const std::optional<at::Tensor>& cosine, const std::optional<at::Tensor>& sine, int64_t rows,
                  int64_t size) {
  if (!cosine.has_value()) return {};
  TORCH_CHECK(sine.has_value() && cosine->dim() == 2 && cosine->sizes() == sine->sizes() && cosine->size(0) == rows &&
                  cosine->size(1) % 2 == 0 && cosine->size(1) <= size && cosine->scalar_type() == at::kFloat &&
                  sine->scalar_type() == at::kFloat,
              "decoder_layer_in: cosine and sine must be float32 [T, R], R even and at most ", size);
  return {cosine->contiguous(), sine->contiguous()};
}

void Heads::check(const char* op) const {
  TORCH_CHECK(0 < query && query <= kMostHeads && 0 < key && key <= kMostHeads && 0 < size && size <= kMostHeads, op,
              ": expected heads and sizes from 1 to ", kMostHeads, ", got ", query, ", ", key, " and ", size);
}

HeadRows HeadRows::of(const at::Tensor& out, const int64_t* index) {
  return {static_cast<char*>(out.mutable_data_ptr()), out.size(1) * out.size(2) * out.element_size(),
          out.scalar_type() == at::kBFloat16, index};
}

LayerIn::LayerIn(int64_t hidden, const LayerInParts& parts, const Heads& heads_in, const Layout& layout)
    : heads(heads_in) {
  heads.check("decoder_layer_in");
  const auto& [query, key, size] = heads;
  norm = {vector_of(parts.norm, hidden, "decoder_layer_in: norm"), static_cast<float>(parts.epsilon), layout.rounds()};
  product = layout.product(hidden, parts.packed, (query + 2 * key) * size, parts.bias);
  query_norm = head_norm_of(parts.query_norm, query, size, parts.head_epsilon);
  key_norm = head_norm_of(parts.key_norm, key, size, parts.head_epsilon);
}

void LayerIn::emit(const Kernels& kernels, const HeadRows& out, int64_t some, int64_t begin, int64_t count,
                   const float* from, const Angles& angles, bool hadamard) const {
  const int64_t rotated = angles.size(), stride = product.args.width;
  const int64_t together = out.index == nullptr ? count : 1; // rows that lie one after the other
  for (int64_t r = begin; r < begin + count; r += together, from += together * stride) {
    const float* cosine = rotated > 0 ? angles.cosine.const_data_ptr<float>() + r * rotated : nullptr;
    const float* sine = rotated > 0 ? angles.sine.const_data_ptr<float>() + r * rotated : nullptr;
    const RotaryArgs a{from,   stride, heads.size, some,       heads.size, rotated,
                       cosine, sine,   rotated,    out.row(r), out.bf16,   hadamard};
    kernels.rotary(a, 0, together);
  }
}

void LayerIn::run(const at::Tensor& stream, const Angles& angles, const HeadRows& query, const HeadRows& key,
                  const HeadRows& value, LayerBuffers& buffers) {
  const Kernels& kernels = *product.kernels;
  const int64_t rows = stream.size(0), hidden = stream.size(1), width = product.args.width;
  if (rows == 0) return;
  const auto emit_rows = [&](int64_t begin, int64_t count, float* projected) {
    float* const keys = projected + heads.query * heads.size;
    query_norm(kernels, projected, count, width, heads.query * heads.size);
    key_norm(kernels, keys, count, width, heads.key * heads.size);
    emit(kernels, query, heads.query, begin, count, projected, angles, query.bf16);
    emit(kernels, key, heads.key, begin, count, keys, angles, key.bf16);
    emit(kernels, value, heads.key, begin, count, keys + heads.key * heads.size, {}, false);
  };
  if (shared_by_threads(rows)) {
    float* const wide = reinterpret_cast<float*>(buffers.wide.of(rows * width * 4));
    product.args.input = norm.all(kernels, stream, buffers.normed);
    product.args.rows = rows;
    multiply(product, After::store, wide, width, false);
    run_blocks(kernels, rows, kStrip, 0,
               [&](int64_t begin, int64_t count, char*) { emit_rows(begin, count, wide + begin * width); });
    return;
  }
  const int64_t block = block_of(rows);
  product.prepare_for(rows);
  whole(product.args, block);
  product.args.after = After::store;
  product.args.out_stride = width;
  Pieces pieces;
  const int64_t workspace = pieces.add(multiply_workspace(kernels, product.args));
  const int64_t normed_at = pieces.add(block * hidden * 4), projected_at = pieces.add(block * width * 4);
  run_blocks(kernels, rows, block, pieces.bytes, [&](int64_t begin, int64_t count, char* base) {
    void* normed = base + normed_at;
    float* projected = reinterpret_cast<float*>(base + projected_at);
    norm(kernels, stream, begin, count, normed);
    LinearArgs a = product.args;
    a.input = {normed, norm.to_bf16, hidden, 0};
    a.rows = count;
    a.out = projected;
    multiply_task(kernels, a, 0, 0, base + workspace);
    emit_rows(begin, count, projected);
  });
}

LayerOut::LayerOut(int64_t hidden, int64_t attended, const LayerOutParts& parts, int64_t inner,
                   c10::string_view activation, const Layout& layout) {
  TORCH_CHECK(0 < inner && inner <= kMostInner && inner % kStrip == 0,
              "decoder_layer_out_: the gate's width must be a positive multiple of ", kStrip, " up to ", kMostInner,
              ", got ", inner);
  norm = {vector_of(parts.norm, hidden, "decoder_layer_out_: norm"), static_cast<float>(parts.epsilon), layout.rounds()};
  out = layout.product(attended, parts.out, hidden, parts.out_bias);
  gate = layout.product(hidden, parts.inner, 2 * inner, parts.inner_bias);
  down = layout.product(inner, parts.down, hidden, parts.down_bias);
  gate.args.activation = activation_of(activation);
}

void LayerOut::run(const at::Tensor& stream, const Source& attended, LayerBuffers& buffers) {
  const Kernels& kernels = *out.kernels;
  const int64_t rows = stream.size(0), hidden = stream.size(1), inner = down.args.size;
  if (rows == 0) return;
  out.args.input = attended;
  float* const sums = stream.mutable_data_ptr<float>();
  if (shared_by_threads(rows)) {
    out.args.rows = gate.args.rows = down.args.rows = rows;
    multiply(out, After::add, sums, stream.stride(0), false);
    char* const gated = buffers.wide.of(rows * inner * 4);
    gate.args.input = norm.all(kernels, stream, buffers.normed);
    down.args.input = {gated, norm.to_bf16, inner, 0};
    multiply(gate, After::gate, gated, inner, norm.to_bf16);
    multiply(down, After::add, sums, stream.stride(0), false);
    return;
  }
  const int64_t block = block_of(rows);
  Pieces pieces;
  int64_t needed = 0;
  for (Product* p : {&out, &gate, &down}) {
    p->prepare_for(rows);
    whole(p->args, block);
    needed = std::max(needed, multiply_workspace(kernels, p->args));
  }
  out.args.after = down.args.after = After::add;
  out.args.out_stride = down.args.out_stride = stream.stride(0);
  gate.args.after = After::gate;
  gate.args.slice_strips = gate.args.strips / 2;
  gate.args.out_stride = inner;
  gate.args.out_bf16 = norm.to_bf16;
  const int64_t workspace = pieces.add(needed);
  const int64_t normed_at = pieces.add(block * hidden * 4), gated_at = pieces.add(block * inner * 4);
  run_blocks(kernels, rows, block, pieces.bytes, [&](int64_t begin, int64_t count, char* base) {
    float* part = sums + begin * stream.stride(0);
    void *normed = base + normed_at, *gated = base + gated_at;
    LinearArgs a = out.args;
    a.input.data = static_cast<const char*>(a.input.data) + begin * a.input.token_stride * (a.input.bf16 ? 2 : 4);
    a.rows = count;
    a.out = part;
    multiply_task(kernels, a, 0, 0, base + workspace);
    norm(kernels, stream, begin, count, normed);
    LinearArgs g = gate.args;
    g.input = {normed, norm.to_bf16, hidden, 0};
    g.rows = count;
    g.out = gated;
    multiply_task(kernels, g, 0, 0, base + workspace);
    LinearArgs d = down.args;
    d.input = {gated, norm.to_bf16, inner, 0};
    d.rows = count;
    d.out = part;
    multiply_task(kernels, d, 0, 0, base + workspace);
  });
}

namespace {

std::tuple<at::Tensor, at::Tensor, at::Tensor> decoder_layer_in(
    const at::Tensor& stream, const at::Tensor& norm, double epsilon, const at::Tensor& packed,
    const std::optional<at::Tensor>& bias, const std::optional<at::Tensor>& query_norm,
    const std::optional<at::Tensor>& key_norm, double head_epsilon, const std::optional<at::Tensor>& cosine,
    const std::optional<at::Tensor>& sine, int64_t heads, int64_t key_heads, int64_t size, bool to_bf16,
    const InputPrecision& input_precision, c10::string_view weight_type, c10::string_view isa) {
  check_stream(stream, "decoder_layer_in");
  const int64_t rows = stream.size(0);
  LayerIn layer(stream.size(1), {norm, epsilon, packed, bias, query_norm, key_norm, head_epsilon},
                {heads, key_heads, size}, {input_precision, weight_type, isa});
  const Angles angles = Angles::of(cosine, sine, rows, size);
  const auto type = stream.options().dtype(to_bf16 ? at::kBFloat16 : at::kFloat);
  const at::Tensor query = at::empty({rows, heads, size}, type), key = at::empty({rows, key_heads, size}, type);
  const at::Tensor value = at::empty({rows, key_heads, size}, type);
  LayerBuffers buffers;
  layer.run(stream, angles, HeadRows::of(query), HeadRows::of(key), HeadRows::of(value), buffers);
  return {query, key, value};
}

void decoder_layer_out(const at::Tensor& stream, const at::Tensor& attended, const at::Tensor& out,
                       const std::optional<at::Tensor>& out_bias, const at::Tensor& norm, double epsilon,
                       const at::Tensor& inner_packed, int64_t inner, const std::optional<at::Tensor>& inner_bias,
                       c10::string_view activation, const at::Tensor& down,
                       const std::optional<at::Tensor>& down_bias, const InputPrecision& input_precision,
                       c10::string_view weight_type, c10::string_view isa) {
  check_stream(stream, "decoder_layer_out_");
  TORCH_CHECK(attended.dim() == 2 && attended.size(0) == stream.size(0) &&
                  (attended.scalar_type() == at::kFloat || attended.scalar_type() == at::kBFloat16),
              "decoder_layer_out_: attention's output must be float32 or bfloat16 of ", stream.size(0), " rows, got ",
              attended.sizes(), " ", attended.scalar_type());
  LayerOut layer(stream.size(1), attended.size(1),
                 {out, out_bias, norm, epsilon, inner_packed, inner_bias, down, down_bias}, inner, activation,
                 {input_precision, weight_type, isa});
  const at::Tensor rows = with_contiguous_rows(attended);
  LayerBuffers buffers;
  layer.run(stream, source_of(rows, -1), buffers);
}

} // namespace

TORCH_LIBRARY_IMPL(fastreader, CPU, m) {
  m.impl("decoder_layer_in", &decoder_layer_in);
  m.impl("decoder_layer_out_", &decoder_layer_out);
}

} // namespace fastreader
