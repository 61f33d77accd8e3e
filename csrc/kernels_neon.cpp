// The kernels compiled for NEON, which every 64-bit ARM has.
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>
#if defined(__aarch64__)
#include <arm_neon.h>
#endif

#include "block_layout.h"
#include "kernels.h"

#include "inline.h"
#define FR_WIDTH 4
#define FR_ROWS 8
#define FR_AVX512 0
#define FR_BF16 0
#define FR_VNNI 0
#define FR_PRODUCTS_ONLY 0
#define FR_NEON 1
#define FR_AMX 0

#if defined(__aarch64__)
namespace fastreader {
namespace {
#include "kernels.inl"
} // namespace

const Kernels* kernels_neon(Mode mode) { return table(mode); }
} // namespace fastreader
#else
namespace fastreader {
const Kernels* kernels_neon(Mode) { return nullptr; }
} // namespace fastreader
#endif
