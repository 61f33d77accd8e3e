// fastreader::linear on the CPU: float32 inputs times stored weights, operands rounded to bf16 or split in two.

#include <ATen/ATen.h>
#include <torch/library.h>

#include "parallel.h"

namespace fastreader {
namespace {

constexpr int64_t kPackedBytes = 512 << 10; // packed inputs of a block: they and a few weight rows stay in L2
constexpr int64_t kMostRows = 256;
constexpr int64_t kTasksPerThread = 4; // fewer, and the last one to finish keeps the others waiting

at::Tensor linear(const at::Tensor& input_in, const at::Tensor& weight_in, const std::optional<at::Tensor>& bias_in,
                  bool split, c10::string_view isa_name) {
  TORCH_CHECK(input_in.dim() == 2 && weight_in.dim() == 2 && input_in.size(1) == weight_in.size(1) &&
                  input_in.size(1) > 0,
              "linear: expected input [T, E] and weight [F, E], got ", input_in.sizes(), weight_in.sizes());
  const at::ScalarType weight_dtype = weight_in.scalar_type();
  TORCH_CHECK(input_in.scalar_type() == at::kFloat && (weight_dtype == at::kFloat || weight_dtype == at::kBFloat16),
              "linear: the CPU kernel takes float32 inputs and float32 or bfloat16 weights, got ",
              input_in.scalar_type(), " and ", weight_dtype);
  const at::Tensor input = with_contiguous_rows(input_in), weight = with_contiguous_rows(weight_in);
  LinearArgs a{};
  a.input = source_of(input, -1);
  a.weight = source_of(weight, -1);
  a.rows = input.size(0);
  a.size = input.size(1);
  a.width = weight.size(0);
  a.padded_size = round_up(a.size, kStrip);
  at::Tensor bias;
  if (bias_in.has_value()) {
    bias = bias_in->to(at::kFloat).contiguous();
    TORCH_CHECK(bias.numel() == a.width, "linear: bias must be [F]");
    a.bias = bias.const_data_ptr<float>();
  }
  const at::Tensor out = at::empty({a.rows, a.width}, input.options());
  if (out.numel() == 0) return out;
  a.out = out.mutable_data_ptr<float>();

  const Mode mode = !split ? Mode::bf16 : weight_dtype == at::kBFloat16 ? Mode::half_split : Mode::split;
  const Kernels& kernels = kernels_for(resolve_isa(std::string(isa_name)), mode);
  const int64_t fitting = kPackedBytes / (a.padded_size * kernels.operand_bytes) / kStrip * kStrip;
  a.row_block = std::min(std::clamp(fitting, kStrip, kMostRows), round_up(a.rows, kStrip));
  const int64_t blocks = (a.rows + a.row_block - 1) / a.row_block;
  const int64_t wanted = at::get_num_threads() == 1 ? 1 : (kTasksPerThread * at::get_num_threads() + blocks - 1) / blocks;
  a.slice_size = round_up((a.width + wanted - 1) / wanted, kStrip);
  const int64_t slices = (a.width + a.slice_size - 1) / a.slice_size;
  run_tasks(kernels, blocks * slices, kernels.linear_workspace(a),
            [&](int64_t i, void* workspace) { kernels.linear(a, i / slices, i % slices, workspace); });
  return out;
}

} // namespace

TORCH_LIBRARY_IMPL(fastreader, CPU, m) { m.impl("linear", &linear); }

} // namespace fastreader
