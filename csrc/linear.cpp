// fastreader::linear on the CPU: float32 inputs times a packed weight, operands rounded to bf16 or in bf16x3.

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/ones.h>
#include <c10/util/SmallVector.h>
#include <torch/library.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "linear.h"

namespace fastreader {
namespace {

constexpr int64_t kStagedBytes = 512 << 10; // operands of a block of rows, which stay in L2 with a strip of the weight
constexpr int64_t kMostRows = 256;
constexpr int64_t kManyRows = 1024;
constexpr int64_t kMostSize = int64_t{1} << 29; // of a weight's sides: numbers of bytes do not overflow
constexpr int64_t kTasksPerThread = 4; // with fewer the others wait longer for the last one

// A bf16 weight needs one term; any other is rounded to one ("fast") or written as the sum of two ("high").
Mode mode_of(at::ScalarType weight, const InputPrecision& input_precision) {
  if (input_precision == "int16") return Mode::scaled;
  if (is_float32(input_precision)) return weight == at::kBFloat16 ? Mode::widened : Mode::f32;
  if (!is_bf16x3(input_precision)) return Mode::bf16;
  return weight == at::kBFloat16 ? Mode::bf16x2 : Mode::bf16x3;
}

} // namespace

Product product_of(int64_t size, const at::Tensor& packed, int64_t width, const std::optional<at::Tensor>& bias,
                   const InputPrecision& input_precision, c10::string_view weight_type, c10::string_view isa) {
  TORCH_CHECK(size > 0, "linear: the inputs must have at least one value");
  TORCH_CHECK(size <= kMostSize && 0 <= width && width <= kMostSize, "linear: expected sizes up to ", kMostSize, ", got [",
              width, ", ", size, "]");
  Product p;
  TORCH_CHECK(weight_type == "float32" || weight_type == "bf16" || weight_type == "blocks",
              "linear: the weight's type must be float32, bf16 or blocks, got ", std::string(weight_type));
  const Mode mode = mode_of(weight_type == "bf16" ? at::kBFloat16 : at::kFloat, input_precision);
  p.kernels = &kernels_for(resolve_isa(std::string(isa)), mode);
  LinearArgs& a = p.args;
  a.size = size;
  a.padded_size = round_up(size, kStrip);
  a.width = width;
  a.strips = (width + kStrip - 1) / kStrip;
  if (weight_type == "blocks") {
    a.blocks = blocks_of(packed, width, size);
  } else {
    TORCH_CHECK(packed.is_contiguous() && packed.scalar_type() == at::kByte &&
                    packed.numel() == p.kernels->packed_bytes(a.strips, a.padded_size),
                "linear: this weight was packed for another size, precision or instruction set");
    a.packed = packed.const_data_ptr();
  }
  if (bias.has_value()) {
    p.bias = bias->to(at::kFloat).contiguous();
    TORCH_CHECK(p.bias.numel() == width, "linear: bias must be [F]");
    a.bias = p.bias.const_data_ptr<float>();
  }
  return p;
}

void Product::prepare_for(int64_t rows) {
  if (args.blocks.count == 0 || kernels->unpack_strip == nullptr || rows < kManyRows) return;
  unpacked = at::empty({kernels->packed_bytes(args.strips, args.padded_size) + 64}, at::kByte);
  char* const first = reinterpret_cast<char*>(round_up(reinterpret_cast<int64_t>(unpacked.data_ptr()), 64));
  run_tasks(*kernels, args.strips, 0, [&](int64_t strip, void*) { kernels->unpack_strip(args, strip, first); });
  args.packed = first;
  args.blocks = {};
}

Product product_of(const at::Tensor& input, const at::Tensor& packed, int64_t width,
                   const std::optional<at::Tensor>& bias, const InputPrecision& input_precision, c10::string_view weight_type,
                   c10::string_view isa) {
  TORCH_CHECK(input.dim() == 2 && input.size(1) > 0 &&
                  (input.scalar_type() == at::kFloat || input.scalar_type() == at::kBFloat16),
              "linear: the CPU kernel takes a float32 or bfloat16 input [T, E], got ", input.sizes(), " ",
              input.scalar_type());
  Product p = product_of(input.size(1), packed, width, bias, input_precision, weight_type, isa);
  p.input = with_contiguous_rows(input);
  p.args.input = source_of(p.input, -1);
  p.args.rows = p.input.size(0);
  return p;
}

void Product::to(After after, void* out, int64_t out_stride, bool out_bf16) {
  args.after = after;
  args.out = out;
  args.out_stride = out_stride;
  args.out_bf16 = out_bf16;
}

void multiply_all(at::ArrayRef<Product*> products) {
  int64_t blocks = 0, bytes = 0, count = 0;
  for (Product* const p : products) {
    LinearArgs& a = p->args;
    if (a.rows == 0 || a.width == 0) continue;
    p->prepare_for(a.rows);
    const int64_t fitting = kStagedBytes / (a.padded_size * p->kernels->operand_bytes) / kStrip * kStrip;
    a.row_block = std::min(std::clamp(fitting, kStrip, kMostRows), round_up(a.rows, kStrip));
    blocks += (a.rows + a.row_block - 1) / a.row_block;
  }
  if (blocks == 0) return;
  struct Cut {
    const LinearArgs* args;
    int64_t first, slices; // the number of its first task
  };
  c10::SmallVector<Cut, 4> cuts;
  const int64_t threads = at::get_num_threads();
  for (Product* const p : products) {
    LinearArgs& a = p->args;
    if (a.rows == 0 || a.width == 0) continue;
    const int64_t strips = a.after == After::gate ? a.strips / 2 : a.strips;
    const int64_t wanted = threads == 1 ? 1 : std::min(strips, (kTasksPerThread * threads + blocks - 1) / blocks);
    a.slice_strips = (strips + wanted - 1) / wanted;
    const int64_t slices = (strips + a.slice_strips - 1) / a.slice_strips;
    cuts.push_back({&a, count, slices});
    count += (a.rows + a.row_block - 1) / a.row_block * slices;
    bytes = std::max(bytes, multiply_workspace(*p->kernels, a));
  }
  const Kernels& kernels = *products[0]->kernels;
  static_assert(sizeof(Held) <= kClearedBytes);
  run_tasks(kernels, count, kClearedBytes + bytes, [&](int64_t i, void* workspace) {
    const auto after = std::upper_bound(cuts.begin(), cuts.end(), i, [](int64_t task, const Cut& c) { return task < c.first; });
    const Cut& cut = *(after - 1);
    multiply_task(kernels, *cut.args, (i - cut.first) / cut.slices, (i - cut.first) % cut.slices,
                  static_cast<char*>(workspace) + kClearedBytes, static_cast<Held*>(workspace));
  });
}

void multiply(Product& p, After after, void* out, int64_t out_stride, bool out_bf16) {
  p.to(after, out, out_stride, out_bf16);
  Product* const only = &p;
  multiply_all(only);
}

Activation activation_of(c10::string_view name) {
  TORCH_CHECK(name == "silu" || name == "gelu_tanh", "unknown activation ", std::string(name));
  return name == "silu" ? Activation::silu : Activation::gelu_tanh;
}

namespace {

constexpr int kFarApart = 3, kFurthest = 60; // binary exponents

// Return powers of two that bring columns far from the others of their 32 near to them. A column that is small throughout
// the weight would lose its bits to the others in the integers of one scale, though its inputs may be large.
at::Tensor column_powers(const at::Tensor& weight, int64_t padded_size) {
  const at::Tensor powers = at::ones({padded_size}, at::kFloat);
  const at::Tensor norms = at::linalg_vector_norm(weight, 1, at::IntArrayRef{0}, false, at::kFloat).contiguous();
  const float* norm = norms.const_data_ptr<float>();
  float* power = powers.mutable_data_ptr<float>();
  for (int64_t from = 0; from < weight.size(1); from += kStrip) {
    const int64_t to = std::min(from + kStrip, weight.size(1));
    std::vector<int> exponents;
    for (int64_t k = from; k < to; ++k) {
      if (std::isnormal(norm[k])) exponents.push_back(std::ilogb(norm[k]));
    }
    if (exponents.empty()) continue;
    const auto middle = exponents.begin() + static_cast<int64_t>(exponents.size() / 2);
    std::nth_element(exponents.begin(), middle, exponents.end());
    for (int64_t k = from; k < to; ++k) {
      const int away = std::isnormal(norm[k]) ? *middle - std::ilogb(norm[k]) : 0;
      if (std::abs(away) >= kFarApart) power[k] = std::ldexp(1.0f, std::clamp(away, -kFurthest, kFurthest));
    }
  }
  return powers;
}

// Pack weights of one depth and type, each behind the one before it.
at::Tensor pack_weights(at::TensorList weights, const InputPrecision& input_precision, c10::string_view isa_name) {
  const at::Tensor& first = weights[0];
  for (const at::Tensor& weight : weights) {
    TORCH_CHECK(weight.dim() == 2 && (weight.scalar_type() == at::kFloat || weight.scalar_type() == at::kBFloat16),
                "linear_pack: the CPU kernel takes a weight [F, E] in float32 or bfloat16, got ", weight.sizes(), " ",
                weight.scalar_type());
    TORCH_CHECK(weight.size(1) == first.size(1) && weight.scalar_type() == first.scalar_type(),
                "linear_pack: expected weights of one depth and type, got ", weight.sizes(), " ", weight.scalar_type(),
                " with ", first.sizes(), " ", first.scalar_type());
  }
  const Mode mode = mode_of(first.scalar_type(), input_precision);
  const Kernels& kernels = kernels_for(resolve_isa(std::string(isa_name)), mode);
  const int64_t size = first.size(1), padded_size = round_up(size, kStrip);
  const auto strips_of = [](const at::Tensor& weight) { return (weight.size(0) + kStrip - 1) / kStrip; };
  int64_t bytes = 0;
  for (const at::Tensor& weight : weights) bytes += kernels.packed_bytes(strips_of(weight), padded_size);
  const at::Tensor packed = at::empty({bytes}, first.options().dtype(at::kByte));
  uint8_t* out = packed.mutable_data_ptr<uint8_t>();
  for (const at::Tensor& weight_in : weights) {
    const at::Tensor weight = with_contiguous_rows(weight_in);
    PackArgs a{};
    a.weight = source_of(weight, -1);
    a.width = weight.size(0);
    a.size = size;
    a.padded_size = padded_size;
    a.strips = strips_of(weight);
    a.packed = out;
    const at::Tensor powers = mode == Mode::scaled ? column_powers(weight, padded_size) : at::Tensor();
    if (powers.defined()) a.columns = powers.const_data_ptr<float>();
    run_tasks(kernels, a.strips, kernels.pack_weight_workspace(a),
              [&](int64_t strip, void* workspace) { kernels.pack_weight(a, strip, workspace); });
    out += kernels.packed_bytes(a.strips, padded_size);
  }
  return packed;
}

void run(Product& p, After after, const at::Tensor& out) {
  multiply(p, after, out.mutable_data_ptr(), out.stride(0), out.scalar_type() == at::kBFloat16);
}

at::Tensor linear(const at::Tensor& input, const at::Tensor& packed, int64_t width,
                  const std::optional<at::Tensor>& bias, const InputPrecision& input_precision, c10::string_view weight_type,
                  c10::string_view isa_name) {
  Product p = product_of(input, packed, width, bias, input_precision, weight_type, isa_name);
  const at::Tensor out = at::empty({p.args.rows, width}, input.options().dtype(at::kFloat));
  run(p, After::store, out);
  return out;
}

void linear_add(const at::Tensor& sum, const at::Tensor& input, const at::Tensor& packed,
                const std::optional<at::Tensor>& bias, const InputPrecision& input_precision, c10::string_view weight_type,
                  c10::string_view isa_name) {
  TORCH_CHECK(sum.dim() == 2 && sum.size(0) == input.size(0) && sum.scalar_type() == at::kFloat && sum.stride(1) == 1,
              "linear_add: expected a float32 sum [", input.size(0), ", F] of contiguous rows, got ", sum.sizes(), " ",
              sum.scalar_type());
  Product p = product_of(input, packed, sum.size(1), bias, input_precision, weight_type, isa_name);
  run(p, After::add, sum);
}

at::Tensor linear_gated(const at::Tensor& input, const at::Tensor& packed, int64_t width,
                        const std::optional<at::Tensor>& bias, c10::string_view activation, bool to_bf16,
                        const InputPrecision& input_precision, c10::string_view weight_type, c10::string_view isa_name) {
  TORCH_CHECK(width % (2 * kStrip) == 0, "linear_gated: the width of the gate must be a multiple of ", kStrip,
              ", got ", width / 2.0);
  Product p = product_of(input, packed, width, bias, input_precision, weight_type, isa_name);
  p.args.activation = activation_of(activation);
  const at::Tensor out =
      at::empty({p.args.rows, width / 2}, input.options().dtype(to_bf16 ? at::kBFloat16 : at::kFloat));
  run(p, After::gate, out);
  return out;
}

} // namespace

TORCH_LIBRARY_IMPL(fastreader, CPU, m) {
  m.impl("linear_pack", &pack_weights);
  m.impl("linear", &linear);
  m.impl("linear_add_", &linear_add);
  m.impl("linear_gated", &linear_gated);
}

} // namespace fastreader
