// Weights that keep the integers of a GGUF file.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include "kernels.h"

namespace fastreader {

// Return where the strips of a weight [width, size] from blocks_pack lie; it is not kept alive.
Blocks blocks_of(const at::Tensor& packed, int64_t width, int64_t size);

} // namespace fastreader
