// The kernels compiled for AVX-512 with bf16 dot products.
#define FR_ISA avx512_bf16
#define FR_TARGET "avx2,fma,avx512f,avx512bw,avx512dq,avx512vl,avx512bf16"
#define FR_WIDTH 16
#define FR_ROWS 8
#define FR_AVX512 1
#define FR_BF16 1
#include "kernels_isa.inl"
