// Products of inputs and a packed weight, for the ops that contain one.
#pragma once

#include <ATen/ATen.h>

#include <optional>
#include <string>

#include "parallel.h"

namespace fastreader {

// A checked product, without its output and the cut of the work. It keeps its tensors alive.
struct Product {
  LinearArgs args{};
  const Kernels* kernels = nullptr;
  at::Tensor input, bias;
};

// Make a product of a weight [width, size] packed by linear_pack.
Product product_of(int64_t size, const at::Tensor& packed, int64_t width, const std::optional<at::Tensor>& bias,
                   const InputPrecision& input_precision, bool bf16_weight, c10::string_view isa);

// Make a product with its input too, float32 or bfloat16 [T, E].
Product product_of(const at::Tensor& input, const at::Tensor& packed, int64_t width,
                   const std::optional<at::Tensor>& bias, const InputPrecision& input_precision, bool bf16_weight,
                   c10::string_view isa);

// Compute the product into `out`, with rows `out_stride` elements apart, float or (only after a gate) bf16. All threads
// share its strips.
void multiply(Product& product, After after, void* out, int64_t out_stride, bool out_bf16);

Activation activation_of(c10::string_view name);

} // namespace fastreader
