// The kernels compiled for AVX-512 with products of int16 (VNNI), and only those.
#define FR_ISA avx512_vnni
#define FR_TARGET "avx2,fma,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni"
#define FR_WIDTH 16
#define FR_ROWS 8
#define FR_AVX512 1
#define FR_VNNI 1
#define FR_PRODUCTS_ONLY 1
#include "kernels_isa.inl"
