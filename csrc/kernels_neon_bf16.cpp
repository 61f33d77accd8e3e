// The kernels compiled for NEON with bf16 dot products (BFDOT).
#define FR_ISA neon_bf16
#if defined(__clang__)
#define FR_TARGET "bf16"
#else
#define FR_TARGET "arch=armv8.2-a+bf16"
#endif
// Before clang 16, arm_neon.h declares bf16 products only if the whole file is compiled for machines that have them.
#if defined(__clang__) && __clang_major__ < 16 && !defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
#define FR_COMPILED 0
#endif
#define FR_WIDTH 4
#define FR_ROWS 8
#define FR_BF16 1
#define FR_NEON 1
#include "kernels_isa.inl"
