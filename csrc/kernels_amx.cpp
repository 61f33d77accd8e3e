// The kernels compiled for AMX tiles of bf16.
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
#define FR_WIDTH 16
#define FR_ROWS 8
#define FR_AVX512 1
#define FR_BF16 1
#define FR_VNNI 0
#define FR_PRODUCTS_ONLY 0
#define FR_NEON 0
#define FR_AMX 1

#if defined(__x86_64__)
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,amx-tile,amx-bf16"))), apply_to = function)
#else
#pragma GCC target("avx2,fma,avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,amx-tile,amx-bf16")
#endif

namespace fastreader {
namespace {
#include "kernels.inl"
} // namespace

const Kernels* kernels_amx(Mode mode) { return table(mode); }
} // namespace fastreader

#if defined(__clang__)
#pragma clang attribute pop
#endif
#else
namespace fastreader {
const Kernels* kernels_amx(Mode) { return nullptr; }
} // namespace fastreader
#endif
