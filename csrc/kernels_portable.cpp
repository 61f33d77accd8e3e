// The kernels compiled for any machine (vectors of 4 floats, as SSE2 and NEON have).
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "block_layout.h"
#include "kernels.h"

#include "inline.h"
#define FR_WIDTH 4
#define FR_ROWS 4
#define FR_AVX512 0
#define FR_BF16 0
#define FR_VNNI 0
#define FR_PRODUCTS_ONLY 0
#define FR_NEON 0
#define FR_AMX 0

namespace fastreader {
namespace {
#include "kernels.inl"
} // namespace

const Kernels* kernels_portable(Mode mode) { return table(mode); }
} // namespace fastreader
