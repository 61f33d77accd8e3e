// fastreader::linear_logprob on the CPU: (block of rows) x (slice of the vocabulary) tasks, then their merge.

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <cmath>

#include "blocks.h"
#include "parallel.h"

namespace fastreader {
namespace {

constexpr int64_t kPackedBytes = 512 << 10; // packed states of a block, which stay in L2 with a few weight rows
constexpr int64_t kMostRows = 256;
constexpr int64_t kSlices = 32; // at most, of the vocabulary: few rows still occupy all threads
constexpr int64_t kLeastSlice = 1024;
// In float, as in the kernels: dividing by exactly the factor that multiplied the logits undoes its rounding.
constexpr double kLog2E = 1.44269504088896340736f;

using Result = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor>;

Result linear_logprob(const at::Tensor& hidden_in, const at::Tensor& weight_in, const at::Tensor& target_in,
                      const std::optional<at::Tensor>& bias_in, const std::optional<at::Tensor>& labels_in,
                      double scale, std::optional<double> softcap, const InputPrecision& input_precision,
                      int64_t blocks_width, c10::string_view isa_name) {
  const bool bf16x3 = is_bf16x3(input_precision), mixed = input_precision.has_value();
  const bool quantised = blocks_width > 0; // the weight keeps its file's integers, and has so many rows
  TORCH_CHECK(hidden_in.dim() == 2 && (quantised || (weight_in.dim() == 2 && hidden_in.size(1) == weight_in.size(1))),
              "linear_logprob: expected hidden [R, E] and weight [V, E], got ", hidden_in.sizes(), weight_in.sizes());
  const at::ScalarType dtype = hidden_in.scalar_type();
  // Blocks are unpacked to the type of the states, or of the products.
  const at::ScalarType weight_dtype = quantised ? (mixed ? at::kFloat : dtype) : weight_in.scalar_type();
  TORCH_CHECK(mixed ? dtype == at::kFloat && (weight_dtype == at::kFloat || weight_dtype == at::kBFloat16)
                    : dtype == weight_dtype && (dtype == at::kFloat || dtype == at::kBFloat16),
              "linear_logprob: the CPU kernel takes float32 or bfloat16, with an input_precision float32 states; got ", dtype,
              " and ", weight_dtype);
  const at::Tensor hidden = with_contiguous_rows(hidden_in), weight = with_contiguous_rows(weight_in);
  const at::Tensor target = target_in.contiguous();
  const at::Tensor labels = labels_in.has_value() ? labels_in->contiguous() : at::empty({0}, target.options());
  LogprobArgs a{};
  a.hidden = source_of(hidden, -1);
  a.rows = hidden.size(0);
  a.vocabulary = quantised ? blocks_width : weight.size(0);
  if (quantised) {
    a.weight_blocks = blocks_of(weight, blocks_width, hidden.size(1));
  } else {
    a.weight = source_of(weight, -1);
  }
  a.size = hidden.size(1);
  a.padded_size = round_up(a.size, kStrip);
  TORCH_CHECK(target.scalar_type() == at::kLong && target.numel() == a.rows && labels.scalar_type() == at::kLong &&
                  a.vocabulary > 0 && a.vocabulary <= std::numeric_limits<int32_t>::max() - kStrip,
              "linear_logprob: target must be int64 [", a.rows, "], labels int64 and the vocabulary not empty");
  a.target = target.const_data_ptr<int64_t>();
  a.labels = labels.const_data_ptr<int64_t>();
  a.label_count = labels.numel();
  for (int64_t i = 0; i < a.rows; ++i) {
    TORCH_CHECK(0 <= a.target[i] && a.target[i] < a.vocabulary, "linear_logprob: a target is outside the vocabulary");
  }
  for (int64_t i = 0; i < a.label_count; ++i) {
    TORCH_CHECK(0 <= a.labels[i] && a.labels[i] < a.vocabulary, "linear_logprob: a label is outside the vocabulary");
  }
  at::Tensor bias;
  if (bias_in.has_value()) {
    bias = bias_in->to(at::kFloat).contiguous();
    TORCH_CHECK(bias.numel() == a.vocabulary, "linear_logprob: bias must be [V]");
    a.bias = bias.const_data_ptr<float>();
  }
  a.scale = static_cast<float>(scale);
  a.softcap = static_cast<float>(softcap.value_or(0));

  const auto options = hidden.options().dtype(at::kFloat);
  const at::Tensor logprob = at::empty({a.rows}, options), logsumexp = at::empty({a.rows}, options);
  const at::Tensor entropy = at::empty({a.rows}, options), argmax = at::empty({a.rows}, target.options());
  const at::Tensor label_logprob = at::empty({a.rows, a.label_count}, options);
  if (a.rows == 0) return {logprob, logsumexp, entropy, argmax, label_logprob};
  a.label_logits = label_logprob.mutable_data_ptr<float>();

  TORCH_CHECK(a.size > 0, "linear_logprob: the states must have at least one value");
  const Mode mode = !bf16x3                          ? (dtype == at::kBFloat16 ? Mode::bf16 : Mode::f32)
                    : weight_dtype == at::kBFloat16 ? Mode::bf16x2
                                                    : Mode::bf16x3;
  const Kernels& kernels = kernels_for(resolve_isa(std::string(isa_name)), mode);
  const int64_t fitting = kPackedBytes / (a.padded_size * kernels.operand_bytes) / kStrip * kStrip;
  a.row_block = std::min(std::clamp(fitting, kStrip, kMostRows), round_up(a.rows, kStrip));
  a.blocks = (a.rows + a.row_block - 1) / a.row_block;
  // The slices depend on the vocabulary only, so that the sums of a row do not depend on the number of rows.
  const int64_t wanted = std::clamp<int64_t>(a.vocabulary / kLeastSlice, 1, kSlices);
  a.slice_size = round_up((a.vocabulary + wanted - 1) / wanted, kStrip);
  const int64_t slices = (a.vocabulary + a.slice_size - 1) / a.slice_size;
  const int64_t strips = a.row_block / kStrip;
  const at::Tensor memory =
      at::empty({static_cast<int64_t>(sizeof(LogprobState)) * slices * a.blocks * strips + 64}, at::kByte);
  a.states = reinterpret_cast<LogprobState*>(round_up(reinterpret_cast<int64_t>(memory.data_ptr()), 64));
  run_tasks(kernels, a.blocks * slices, kernels.logprob_workspace(a), [&](int64_t i, void* workspace) {
    kernels.logprob(a, i / slices, i % slices, workspace);
  });

  float* out_logprob = logprob.mutable_data_ptr<float>();
  float* out_logsumexp = logsumexp.mutable_data_ptr<float>();
  float* out_entropy = entropy.mutable_data_ptr<float>();
  int64_t* out_argmax = argmax.mutable_data_ptr<int64_t>();
  at::parallel_for(0, a.rows, 1024, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const int64_t strip = row / a.row_block * strips + row % a.row_block / kStrip, lane = row % kStrip;
      const auto state = [&](int64_t slice) -> const LogprobState& { return a.states[slice * a.blocks * strips + strip]; };
      float top = state(0).maximum[lane];
      for (int64_t slice = 1; slice < slices; ++slice) top = std::max(top, state(slice).maximum[lane]);
      double total = 0, weighted = 0;
      float best = -std::numeric_limits<float>::infinity(), picked = 0;
      int64_t winner = 0;
      for (int64_t slice = 0; slice < slices; ++slice) {
        const LogprobState& s = state(slice);
        const double factor = std::exp2(static_cast<double>(s.maximum[lane]) - top);
        total += (static_cast<double>(s.total[lane]) - s.total_lost[lane]) * factor;
        weighted += (static_cast<double>(s.weighted[lane]) - s.weighted_lost[lane]) * factor;
        if (s.best[lane] > best) {
          best = s.best[lane];
          winner = s.argmax[lane];
        }
        if (a.target[row] / a.slice_size == slice) picked = s.picked[lane];
      }
      const double lse = (top + std::log2(total)) / kLog2E;
      out_logsumexp[row] = static_cast<float>(lse);
      out_logprob[row] = static_cast<float>(picked - lse);
      out_entropy[row] = static_cast<float>(lse - weighted / total);
      out_argmax[row] = winner;
      for (int64_t i = 0; i < a.label_count; ++i) {
        float& at = a.label_logits[row * a.label_count + i];
        at = static_cast<float>(at - lse);
      }
    }
  });
  return {logprob, logsumexp, entropy, argmax, label_logprob};
}

} // namespace

TORCH_LIBRARY_IMPL(fastreader, CPU, m) { m.impl("linear_logprob", &linear_logprob); }

} // namespace fastreader
