// fastreader::decoder_layer_in and decoder_layer_out_ on the CPU: a decoder layer before and after attention.
//
// A block of rows goes through everything in one thread, and its values stay in that core's caches: no thread waits
// for the slowest one between two products, and nothing wider than a query is written to memory. With too few rows for
// one block per thread, as when texts are written, the threads share each product instead, so that each weight is read
// once. Both ways give the same bits.

#include <ATen/ATen.h>
#include <torch/library.h>

#include "linear.h"

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

void check_stream(const at::Tensor& stream, const char* op) {
  TORCH_CHECK(stream.dim() == 2 && stream.scalar_type() == at::kFloat && stream.stride(1) == 1, op,
              ": the residual stream must be float32 [T, E] of contiguous rows, got ", stream.sizes(), " ",
              stream.scalar_type());
}

at::Tensor vector_of(const at::Tensor& weight, int64_t size, const char* name) {
  TORCH_CHECK(weight.dim() == 1 && weight.size(0) == size && weight.scalar_type() == at::kFloat, name,
              " must be float32 [", size, "], got ", weight.sizes(), " ", weight.scalar_type());
  return weight.contiguous();
}

// Normalise heads (each row has several) or whole rows, in place.
struct HeadNorm {
  at::Tensor weight;
  float epsilon = 0;
  void operator()(const Kernels& kernels, float* first, int64_t rows, int64_t stride, int64_t features) const {
    if (!weight.defined()) return;
    const int64_t size = weight.size(0);
    for (int64_t r = 0; r < rows; ++r) {
      float* row = first + r * stride;
      const NormArgs norm{row, size, size, weight.const_data_ptr<float>(), epsilon, row, size, false};
      kernels.rms_norm(norm, 0, features / size);
    }
  }
};

// Normalise rows of the stream, rounded if the next product would round them.
struct StreamNorm {
  const at::Tensor& stream;
  at::Tensor weight;
  float epsilon;
  bool to_bf16;
  void operator()(const Kernels& kernels, int64_t begin, int64_t count, void* out) const {
    const int64_t size = stream.size(1), stride = stream.stride(0);
    const float* first = stream.const_data_ptr<float>() + begin * stride;
    kernels.rms_norm({first, stride, size, weight.const_data_ptr<float>(), epsilon, out, size, to_bf16}, 0, count);
  }
  // Normalise all rows, block by block.
  at::Tensor all(const Kernels& kernels) const {
    const at::Tensor out = at::empty(stream.sizes(), stream.options().dtype(to_bf16 ? at::kBFloat16 : at::kFloat));
    char* const first = static_cast<char*>(out.mutable_data_ptr());
    const int64_t row = stream.size(1) * out.element_size();
    run_blocks(kernels, stream.size(0), kStrip, 0,
               [&](int64_t begin, int64_t count, char*) { (*this)(kernels, begin, count, first + begin * row); });
    return out;
  }
};

std::tuple<at::Tensor, at::Tensor, at::Tensor> decoder_layer_in(
    const at::Tensor& stream, const at::Tensor& norm_in, double epsilon, const at::Tensor& packed,
    const std::optional<at::Tensor>& bias, const std::optional<at::Tensor>& query_norm,
    const std::optional<at::Tensor>& key_norm, double head_epsilon, const std::optional<at::Tensor>& cosine_in,
    const std::optional<at::Tensor>& sine_in, int64_t heads, int64_t key_heads, int64_t size, bool to_bf16,
    const InputPrecision& input_precision, c10::string_view weight_type, c10::string_view isa) {
  check_stream(stream, "decoder_layer_in");
  TORCH_CHECK(0 < heads && heads <= kMostHeads && 0 < key_heads && key_heads <= kMostHeads && 0 < size && size <= kMostHeads,
              "decoder_layer_in: expected heads and sizes from 1 to ", kMostHeads, ", got ", heads, ", ", key_heads, " and ",
              size);
  const int64_t rows = stream.size(0), hidden = stream.size(1), width = (heads + 2 * key_heads) * size;
  const bool round = !input_precision.has_value();
  const at::Tensor norm_weight = vector_of(norm_in, hidden, "decoder_layer_in: norm");
  const StreamNorm norm{stream, norm_weight, static_cast<float>(epsilon), round};
  Product product = product_of(hidden, packed, width, bias, input_precision, weight_type, isa);
  const Kernels& kernels = *product.kernels;
  HeadNorm of_query, of_key;
  const auto head_norm = [&](const std::optional<at::Tensor>& weight, int64_t count, HeadNorm& out) {
    if (!weight.has_value()) return;
    TORCH_CHECK(weight->numel() == size || weight->numel() == count * size,
                "decoder_layer_in: a norm of heads must be that of one head or of all, got ", weight->sizes());
    out = {vector_of(*weight, weight->numel(), "decoder_layer_in: norm of heads"), static_cast<float>(head_epsilon)};
  };
  head_norm(query_norm, heads, of_query);
  head_norm(key_norm, key_heads, of_key);
  at::Tensor cosine, sine;
  if (cosine_in.has_value()) {
    TORCH_CHECK(sine_in.has_value() && cosine_in->dim() == 2 && cosine_in->sizes() == sine_in->sizes() &&
                    cosine_in->size(0) == rows && cosine_in->size(1) % 2 == 0 && cosine_in->size(1) <= size &&
                    cosine_in->scalar_type() == at::kFloat && sine_in->scalar_type() == at::kFloat,
                "decoder_layer_in: cosine and sine must be float32 [T, R], R even and at most ", size);
    cosine = cosine_in->contiguous();
    sine = sine_in->contiguous();
  }
  const auto type = stream.options().dtype(to_bf16 ? at::kBFloat16 : at::kFloat);
  const at::Tensor query = at::empty({rows, heads, size}, type), key = at::empty({rows, key_heads, size}, type);
  const at::Tensor value = at::empty({rows, key_heads, size}, type);
  if (rows == 0) return {query, key, value};

  const int64_t rotated = cosine.defined() ? cosine.size(1) : 0;
  const auto emit_rows = [&](int64_t begin, int64_t count, float* projected) {
    of_query(kernels, projected, count, width, heads * size);
    of_key(kernels, projected + heads * size, count, width, key_heads * size);
    const auto emit = [&](const float* from, int64_t some, const at::Tensor& out, int64_t turned) {
      const int64_t bytes = begin * some * size * out.element_size();
      const RotaryArgs r{from,
                         width,
                         size,
                         some,
                         size,
                         turned,
                         turned > 0 ? cosine.const_data_ptr<float>() + begin * rotated : nullptr,
                         turned > 0 ? sine.const_data_ptr<float>() + begin * rotated : nullptr,
                         rotated,
                         static_cast<char*>(out.mutable_data_ptr()) + bytes,
                         to_bf16};
      kernels.rotary(r, 0, count);
    };
    emit(projected, heads, query, rotated);
    emit(projected + heads * size, key_heads, key, rotated);
    emit(projected + (heads + key_heads) * size, key_heads, value, 0);
  };
  if (shared_by_threads(rows)) {
    const at::Tensor normed = norm.all(kernels), projected = at::empty({rows, width}, stream.options());
    float* const wide = projected.mutable_data_ptr<float>();
    product.args.input = source_of(normed, -1);
    product.args.rows = rows;
    multiply(product, After::store, wide, width, false);
    run_blocks(kernels, rows, kStrip, 0,
               [&](int64_t begin, int64_t count, char*) { emit_rows(begin, count, wide + begin * width); });
    return {query, key, value};
  }
  const int64_t block = block_of(rows);
  whole(product.args, block);
  product.args.after = After::store;
  product.args.out_stride = width;
  Pieces pieces;
  const int64_t workspace = pieces.add(multiply_workspace(kernels, product.args));
  const int64_t normed_at = pieces.add(block * hidden * 4), projected_at = pieces.add(block * width * 4);
  run_blocks(kernels, rows, block, pieces.bytes, [&](int64_t begin, int64_t count, char* base) {
    void* normed = base + normed_at;
    float* projected = reinterpret_cast<float*>(base + projected_at);
    norm(kernels, begin, count, normed);
    LinearArgs a = product.args;
    a.input = {normed, round, hidden, 0};
    a.rows = count;
    a.out = projected;
    multiply_task(kernels, a, 0, 0, base + workspace);
    emit_rows(begin, count, projected);
  });
  return {query, key, value};
}

void decoder_layer_out(const at::Tensor& stream, const at::Tensor& attended, const at::Tensor& out_packed,
                       const std::optional<at::Tensor>& out_bias, const at::Tensor& norm_in, double epsilon,
                       const at::Tensor& inner_packed, int64_t inner, const std::optional<at::Tensor>& inner_bias,
                       c10::string_view activation, const at::Tensor& down_packed,
                       const std::optional<at::Tensor>& down_bias, const InputPrecision& input_precision,
                       c10::string_view weight_type, c10::string_view isa) {
  check_stream(stream, "decoder_layer_out_");
  const int64_t rows = stream.size(0), hidden = stream.size(1);
  TORCH_CHECK(attended.size(0) == rows, "decoder_layer_out_: attention's output has ", attended.size(0),
              " rows, the stream ", rows);
  TORCH_CHECK(0 < inner && inner <= kMostInner && inner % kStrip == 0, "decoder_layer_out_: the gate's width must be a positive multiple of ",
              kStrip, " up to ", kMostInner, ", got ", inner);
  const bool round = !input_precision.has_value();
  const at::Tensor norm_weight = vector_of(norm_in, hidden, "decoder_layer_out_: norm");
  const StreamNorm norm{stream, norm_weight, static_cast<float>(epsilon), round};
  Product out = product_of(attended, out_packed, hidden, out_bias, input_precision, weight_type, isa);
  Product gate = product_of(hidden, inner_packed, 2 * inner, inner_bias, input_precision, weight_type, isa);
  Product down = product_of(inner, down_packed, hidden, down_bias, input_precision, weight_type, isa);
  const Kernels& kernels = *out.kernels;
  if (rows == 0) return;
  gate.args.activation = activation_of(activation);
  if (shared_by_threads(rows)) {
    float* const sums = stream.mutable_data_ptr<float>();
    multiply(out, After::add, sums, stream.stride(0), false);
    const at::Tensor normed = norm.all(kernels), gated = at::empty({rows, inner}, normed.options());
    gate.args.input = source_of(normed, -1);
    down.args.input = source_of(gated, -1);
    gate.args.rows = down.args.rows = rows;
    multiply(gate, After::gate, gated.mutable_data_ptr(), inner, round);
    multiply(down, After::add, sums, stream.stride(0), false);
    return;
  }
  const int64_t block = block_of(rows);
  Pieces pieces;
  int64_t needed = 0;
  for (Product* p : {&out, &gate, &down}) {
    whole(p->args, block);
    needed = std::max(needed, multiply_workspace(kernels, p->args));
  }
  out.args.after = down.args.after = After::add;
  out.args.out_stride = down.args.out_stride = stream.stride(0);
  gate.args.after = After::gate;
  gate.args.slice_strips = gate.args.strips / 2;
  gate.args.out_stride = inner;
  gate.args.out_bf16 = round;
  const int64_t workspace = pieces.add(needed);
  const int64_t normed_at = pieces.add(block * hidden * 4), gated_at = pieces.add(block * inner * 4);
  run_blocks(kernels, rows, block, pieces.bytes, [&](int64_t begin, int64_t count, char* base) {
    float* part = stream.mutable_data_ptr<float>() + begin * stream.stride(0);
    void *normed = base + normed_at, *gated = base + gated_at;
    LinearArgs a = out.args;
    a.input.data = static_cast<const char*>(a.input.data) + begin * a.input.token_stride * (a.input.bf16 ? 2 : 4);
    a.rows = count;
    a.out = part;
    multiply_task(kernels, a, 0, 0, base + workspace);
    norm(kernels, begin, count, normed);
    LinearArgs g = gate.args;
    g.input = {normed, round, hidden, 0};
    g.rows = count;
    g.out = gated;
    multiply_task(kernels, g, 0, 0, base + workspace);
    LinearArgs d = down.args;
    d.input = {gated, round, inner, 0};
    d.rows = count;
    d.out = part;
    multiply_task(kernels, d, 0, 0, base + workspace);
  });
}

} // namespace

TORCH_LIBRARY_IMPL(fastreader, CPU, m) {
  m.impl("decoder_layer_in", &decoder_layer_in);
  m.impl("decoder_layer_out_", &decoder_layer_out);
}

} // namespace fastreader
