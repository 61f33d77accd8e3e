// The kernels compiled for AVX-512.
#define FR_ISA avx512
#define FR_TARGET "avx2,fma,avx512f,avx512bw,avx512dq,avx512vl"
#define FR_WIDTH 16
#define FR_ROWS 8
#define FR_AVX512 1
#include "kernels_isa.inl"
