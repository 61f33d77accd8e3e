// The kernels compiled for AVX2 and FMA.
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "block_layout.h"
#include "kernels.h"

#include "inline.h"
#define FR_WIDTH 8
#define FR_ROWS 4
#define FR_AVX512 0
#define FR_BF16 0
#define FR_VNNI 0
#define FR_PRODUCTS_ONLY 0
#define FR_NEON 0
#define FR_AMX 0

#if defined(__x86_64__)
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma"))), apply_to = function)
#else
#pragma GCC target("avx2,fma")
#endif

namespace fastreader {
namespace {
#include "kernels.inl"
} // namespace

const Kernels* kernels_avx2(Mode mode) { return table(mode); }
} // namespace fastreader

#if defined(__clang__)
#pragma clang attribute pop
#endif
#else
namespace fastreader {
const Kernels* kernels_avx2(Mode) { return nullptr; }
} // namespace fastreader
#endif
