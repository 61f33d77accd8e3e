// fastreader::causal_conv on the CPU: a short depthwise convolution over the paths of a packed tree.

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "parallel.h"

namespace fastreader {
namespace {

constexpr int64_t kTaskBytes = 256 << 10; // of input read by one task

at::Tensor causal_conv(const at::Tensor& input_in, const at::Tensor& weight_in, const at::Tensor& ancestors_in,
                       const std::optional<at::Tensor>& bias_in, const std::optional<at::Tensor>& initial_in, bool silu,
                       c10::string_view isa) {
  TORCH_CHECK(input_in.dim() == 2 && input_in.scalar_type() == at::kFloat && weight_in.dim() == 2 &&
                  weight_in.scalar_type() == at::kFloat && weight_in.size(0) == input_in.size(1) &&
                  0 < weight_in.size(1) && weight_in.size(1) <= ConvArgs::kMostTaps,
              "causal_conv: the CPU kernel takes float32 [T, C] and [C, K], K up to ", ConvArgs::kMostTaps, ", got ",
              input_in.sizes(), " and ", weight_in.sizes());
  const int64_t tokens = input_in.size(0), size = input_in.size(1), taps = weight_in.size(1);
  TORCH_CHECK(ancestors_in.scalar_type() == at::kLong && ancestors_in.dim() == 2 && ancestors_in.size(0) == tokens &&
                  ancestors_in.size(1) == taps - 1,
              "causal_conv: ancestors must be int64 [", tokens, ", ", taps - 1, "], got ", ancestors_in.sizes());
  const at::Tensor input = with_contiguous_rows(input_in), ancestors = ancestors_in.contiguous();
  const at::Tensor weight = weight_in.t().flip(0).contiguous();
  at::Tensor bias, initial;
  int64_t outside = 0;
  if (bias_in.has_value()) {
    TORCH_CHECK(bias_in->scalar_type() == at::kFloat && bias_in->dim() == 1 && bias_in->size(0) == size,
                "causal_conv: bias must be float32 [", size, "], got ", bias_in->sizes());
    bias = bias_in->contiguous();
  }
  if (initial_in.has_value()) {
    TORCH_CHECK(initial_in->scalar_type() == at::kFloat && initial_in->dim() == 3 && initial_in->size(1) == taps - 1 &&
                    initial_in->size(2) == size,
                "causal_conv: initial must be float32 [S, ", taps - 1, ", ", size, "], got ", initial_in->sizes());
    initial = initial_in->contiguous();
    outside = initial.size(0) * (taps - 1);
  }
  const int64_t* const nearest = ancestors.const_data_ptr<int64_t>();
  for (int64_t i = 0; i < ancestors.numel(); ++i) {
    TORCH_CHECK(-2 - outside < nearest[i] && nearest[i] < tokens, "causal_conv: expected ancestors from ",
                -1 - outside, " to ", tokens - 1, ", got ", nearest[i]);
  }
  const at::Tensor out = at::empty({tokens, size}, input.options());
  if (out.numel() == 0) return out;
  ConvArgs a{};
  a.input = input.const_data_ptr<float>();
  a.input_stride = input.stride(0);
  a.size = size;
  a.taps = taps;
  a.initial = initial.defined() ? initial.const_data_ptr<float>() : nullptr;
  a.ancestors = nearest;
  a.weight = weight.const_data_ptr<float>();
  a.bias = bias.defined() ? bias.const_data_ptr<float>() : nullptr;
  a.silu = silu;
  a.out = out.mutable_data_ptr<float>();
  const Kernels& kernels = kernels_for(resolve_isa(std::string(isa)), Mode::f32);
  const int64_t block = std::max<int64_t>(1, kTaskBytes / (size * 4));
  run_blocks(kernels, tokens, block, 0,
             [&](int64_t begin, int64_t count, char*) { kernels.convolve(a, begin, begin + count); });
  return out;
}

} // namespace

TORCH_LIBRARY_IMPL(fastreader, CPU, m) { m.impl("causal_conv", &causal_conv); }

} // namespace fastreader
