// Products of inputs and a packed weight, for the ops that contain one.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>

#include "blocks.h"
#include "parallel.h"

namespace fastreader {

// A checked product, without its output and the cut of the work. It keeps its tensors alive.
struct Product {
  LinearArgs args{};
  const Kernels* kernels = nullptr;
  at::Tensor input, bias, unpacked;

  // Set the output, as `multiply` takes it.
  void to(After after, void* out, int64_t out_stride, bool out_bf16);

  // Unpack a weight of blocks once if so many rows follow that this takes less than doing so for each block of them.
  void prepare_for(int64_t rows);
};

// Make a product of a weight [width, size] packed by linear_pack from `weight_type` "float32" or "bf16", or by blocks_pack
// ("blocks").
Product product_of(int64_t size, const at::Tensor& packed, int64_t width, const std::optional<at::Tensor>& bias,
                   const InputPrecision& input_precision, c10::string_view weight_type, c10::string_view isa);

// Make a product with its input too, float32 or bfloat16 [T, E].
Product product_of(const at::Tensor& input, const at::Tensor& packed, int64_t width,
                   const std::optional<at::Tensor>& bias, const InputPrecision& input_precision, c10::string_view weight_type,
                   c10::string_view isa);

// Multiply one block of rows by one slice of the weight, and return the workspace that this takes. With `held` the rows are
// made to operands only if they are not those of the task before.
inline void multiply_task(const Kernels& kernels, const LinearArgs& a, int64_t block, int64_t slice, void* workspace,
                          Held* held = nullptr) {
  (a.blocks.count > 0 ? kernels.linear_blocks : kernels.linear)(a, block, slice, workspace, held);
}
inline int64_t multiply_workspace(const Kernels& kernels, const LinearArgs& a) {
  return (a.blocks.count > 0 ? kernels.linear_blocks_workspace : kernels.linear_workspace)(a);
}

// Compute the product into `out`, with rows `out_stride` elements apart, float or (only after a gate) bf16. All threads
// share its strips.
void multiply(Product& product, After after, void* out, int64_t out_stride, bool out_bf16);

// Compute products of one layout whose outputs are set (`Product::to`). All threads share the strips of all of them, so
// that none waits between two.
void multiply_all(at::ArrayRef<Product*> products);

Activation activation_of(c10::string_view name);

} // namespace fastreader
