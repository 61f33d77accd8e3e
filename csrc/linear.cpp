// fastreader::linear on the CPU: float32 inputs times a packed weight, operands rounded to bf16 or split in two.

#include <ATen/ATen.h>
#include <torch/library.h>

#include "parallel.h"

namespace fastreader {
namespace {

constexpr int64_t kStagedBytes = 512 << 10; // operands of a block of rows: they and a strip of the weight stay in L2
constexpr int64_t kMostRows = 256;
constexpr int64_t kTasksPerThread = 4; // fewer, and the last one to finish keeps the others waiting

// A weight exactly bf16 needs one term; any other is rounded to one ("fast") or split into two ("high").
Mode mode_of(at::ScalarType weight, bool split) {
  return !split ? Mode::bf16 : weight == at::kBFloat16 ? Mode::half_split : Mode::split;
}

at::Tensor pack_weight(const at::Tensor& weight_in, bool split, c10::string_view isa_name) {
  TORCH_CHECK(weight_in.dim() == 2 && (weight_in.scalar_type() == at::kFloat || weight_in.scalar_type() == at::kBFloat16),
              "linear_pack: the CPU kernel takes a weight [F, E] in float32 or bfloat16, got ", weight_in.sizes(), " ",
              weight_in.scalar_type());
  const at::Tensor weight = with_contiguous_rows(weight_in);
  const Kernels& kernels = kernels_for(resolve_isa(std::string(isa_name)), mode_of(weight.scalar_type(), split));
  PackArgs a{};
  a.weight = source_of(weight, -1);
  a.width = weight.size(0);
  a.size = weight.size(1);
  a.padded_size = round_up(a.size, kStrip);
  a.strips = (a.width + kStrip - 1) / kStrip;
  const at::Tensor packed =
      at::empty({a.strips * kStrip * a.padded_size * kernels.weight_bytes}, weight.options().dtype(at::kByte));
  a.packed = packed.mutable_data_ptr();
  run_tasks(kernels, a.strips, kernels.pack_weight_workspace(a),
            [&](int64_t strip, void* workspace) { kernels.pack_weight(a, strip, workspace); });
  return packed;
}

at::Tensor linear(const at::Tensor& input_in, const at::Tensor& packed, int64_t width,
                  const std::optional<at::Tensor>& bias_in, bool split, bool bf16_weight, c10::string_view isa_name) {
  TORCH_CHECK(input_in.dim() == 2 && input_in.size(1) > 0 &&
                  (input_in.scalar_type() == at::kFloat || input_in.scalar_type() == at::kBFloat16),
              "linear: the CPU kernel takes a float32 or bfloat16 input [T, E], got ", input_in.sizes(), " ", input_in.scalar_type());
  const at::Tensor input = with_contiguous_rows(input_in);
  const Kernels& kernels =
      kernels_for(resolve_isa(std::string(isa_name)), mode_of(bf16_weight ? at::kBFloat16 : at::kFloat, split));
  LinearArgs a{};
  a.input = source_of(input, -1);
  a.rows = input.size(0);
  a.size = input.size(1);
  a.padded_size = round_up(a.size, kStrip);
  a.width = width;
  a.strips = (width + kStrip - 1) / kStrip;
  TORCH_CHECK(packed.is_contiguous() && packed.scalar_type() == at::kByte &&
                  packed.numel() == a.strips * kStrip * a.padded_size * kernels.weight_bytes,
              "linear: this weight was packed for another size, precision or instruction set");
  a.packed = packed.const_data_ptr();
  at::Tensor bias;
  if (bias_in.has_value()) {
    bias = bias_in->to(at::kFloat).contiguous();
    TORCH_CHECK(bias.numel() == a.width, "linear: bias must be [F]");
    a.bias = bias.const_data_ptr<float>();
  }
  const at::Tensor out = at::empty({a.rows, a.width}, input.options().dtype(at::kFloat));
  if (out.numel() == 0) return out;
  a.out = out.mutable_data_ptr<float>();
  const int64_t fitting = kStagedBytes / (a.padded_size * kernels.operand_bytes) / kStrip * kStrip;
  a.row_block = std::min(std::clamp(fitting, kStrip, kMostRows), round_up(a.rows, kStrip));
  const int64_t blocks = (a.rows + a.row_block - 1) / a.row_block;
  const int64_t threads = at::get_num_threads();
  const int64_t wanted = threads == 1 ? 1 : std::min(a.strips, (kTasksPerThread * threads + blocks - 1) / blocks);
  a.slice_strips = (a.strips + wanted - 1) / wanted;
  const int64_t slices = (a.strips + a.slice_strips - 1) / a.slice_strips;
  run_tasks(kernels, blocks * slices, kernels.linear_workspace(a),
            [&](int64_t i, void* workspace) { kernels.linear(a, i / slices, i % slices, workspace); });
  return out;
}

} // namespace

TORCH_LIBRARY_IMPL(fastreader, CPU, m) {
  m.impl("linear_pack", &pack_weight);
  m.impl("linear", &linear);
}

} // namespace fastreader
