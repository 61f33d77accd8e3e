// Blocks of a GGUF file in the layout of the kernels.
#pragma once

#include <cstdint>

#include "block_layout.h"

namespace fastreader {

// Columns of a block of the file, and its bytes.
constexpr int64_t block_size(BlockFormat format) {
  return kBlockShapes[static_cast<int>(format)].supers > 0 ? kRecord * kSuper : kRecord;
}
constexpr int64_t file_bytes(BlockFormat format) {
  constexpr int64_t bytes[kBlockFormats] = {18, 20, 22, 24, 34, 144, 176, 210, 110, 18, 136, 17};
  return bytes[static_cast<int>(format)];
}

// Pack up to 32 rows of `size` columns, `row_bytes` apart, as one strip (`strip_bytes`); return whether all scales are
// finite.
bool pack_block_strip(BlockFormat format, const uint8_t* rows, int64_t row_bytes, int64_t count, int64_t size,
                      uint8_t* out);

} // namespace fastreader
