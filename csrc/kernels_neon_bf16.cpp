// The kernels compiled for NEON with bf16 dot products (BFDOT).
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
#define FR_BF16 1
#define FR_VNNI 0
#define FR_PRODUCTS_ONLY 0
#define FR_NEON 1
#define FR_AMX 0

// Before clang 16, arm_neon.h declares bf16 products only if the whole file is compiled for machines that have them.
#if defined(__aarch64__) && (!defined(__clang__) || __clang_major__ >= 16 || defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC))
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("bf16"))), apply_to = function)
#else
#pragma GCC target("arch=armv8.2-a+bf16")
#endif

namespace fastreader {
namespace {
#include "kernels.inl"
} // namespace

const Kernels* kernels_neon_bf16(Mode mode) { return table(mode); }
} // namespace fastreader

#if defined(__clang__)
#pragma clang attribute pop
#endif
#else
namespace fastreader {
const Kernels* kernels_neon_bf16(Mode) { return nullptr; }
} // namespace fastreader
#endif
