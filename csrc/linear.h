// A product of inputs with a packed weight, for the ops that contain one.
#pragma once

#include <ATen/ATen.h>

#include <optional>
#include <string>

#include "parallel.h"

namespace fastreader {

// Checked, its output and the cut of the work not yet set. The tensors are kept alive here.
struct Product {
  LinearArgs args{};
  const Kernels* kernels = nullptr;
  at::Tensor input, bias;
};

// A weight [width, size] as linear_pack left it.
Product product_of(int64_t size, const at::Tensor& packed, int64_t width, const std::optional<at::Tensor>& bias,
                   const InputPrecision& input_precision, bool bf16_weight, c10::string_view isa);

// The same with its input, float32 or bfloat16 [T, E].
Product product_of(const at::Tensor& input, const at::Tensor& packed, int64_t width,
                   const std::optional<at::Tensor>& bias, const InputPrecision& input_precision, bool bf16_weight, c10::string_view isa);

// Computes the product into `out`, its rows `out_stride` elements apart, float or (after a gate only) bf16; all threads
// share its strips.
void multiply(Product& product, After after, void* out, int64_t out_stride, bool out_bf16);

Activation activation_of(c10::string_view name);

} // namespace fastreader
