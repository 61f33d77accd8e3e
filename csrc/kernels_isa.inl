// The kernels of one instruction set. A file kernels_<isa>.cpp defines what that set has and includes this file:
//   FR_ISA: its name in isa.h.
//   FR_TARGET: the compiler's name for it; without one, what the compiler takes as given.
//   FR_COMPILED: whether this compiler and machine can have it; by default 64-bit x86, or ARM with FR_NEON.
//   FR_WIDTH, FR_ROWS: floats of a vector, and rows of a tile of products.
//   FR_AVX512, FR_BF16, FR_VNNI, FR_NEON, FR_AMX: whether it has these instructions; 0 by default.
//   FR_PRODUCTS_ONLY: whether it has products of `linear` and pointwise kernels but no others; 0 by default.
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>
#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#include "block_layout.h"
#include "inline.h"
#include "kernels.h"

#ifndef FR_AVX512
#define FR_AVX512 0
#endif
#ifndef FR_BF16
#define FR_BF16 0
#endif
#ifndef FR_VNNI
#define FR_VNNI 0
#endif
#ifndef FR_NEON
#define FR_NEON 0
#endif
#ifndef FR_AMX
#define FR_AMX 0
#endif
#ifndef FR_PRODUCTS_ONLY
#define FR_PRODUCTS_ONLY 0
#endif
// Whether bf16 products take the integers of a weight of blocks as they are. Tile units would have to store their sums for
// every scale.
#define FR_EXACT (FR_BF16 && FR_AVX512 && !FR_AMX)
#ifndef FR_COMPILED
#if FR_NEON && defined(__aarch64__)
#define FR_COMPILED 1
#elif !FR_NEON && defined(__x86_64__)
#define FR_COMPILED 1
#else
#define FR_COMPILED 0
#endif
#endif

#define FR_PRAGMA(...) _Pragma(#__VA_ARGS__)
#define FR_PRAGMA_OF(...) FR_PRAGMA(__VA_ARGS__) // of the macros' values
#define FR_JOIN(left, right) left##right
#define FR_NAME(isa) FR_JOIN(kernels_, isa)
// setup.py defines FR_WITHOUT_<isa> as 1 for the sets that a build leaves out.
#define FR_WITHOUT(isa) FR_JOIN(FR_WITHOUT_, isa)

#if FR_COMPILED && !FR_WITHOUT(FR_ISA)
#ifdef FR_TARGET
#if defined(__clang__)
FR_PRAGMA_OF(clang attribute push(__attribute__((target(FR_TARGET))), apply_to = function))
#else
FR_PRAGMA_OF(GCC target(FR_TARGET))
#endif
#endif

namespace fastreader {
namespace {
#include "kernels.inl"
} // namespace

const Kernels* FR_NAME(FR_ISA)(Mode mode) { return table(mode); }
} // namespace fastreader

#if defined(FR_TARGET) && defined(__clang__)
FR_PRAGMA(clang attribute pop)
#endif
#else
namespace fastreader {
const Kernels* FR_NAME(FR_ISA)(Mode) { return nullptr; }
} // namespace fastreader
#endif
