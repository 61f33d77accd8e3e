// The kernels compiled for AVX2 with products of int16 (AVX-VNNI), and only those.
#define FR_ISA avx2_vnni
#define FR_TARGET "avx2,fma,f16c,avxvnni"
#define FR_WIDTH 8
#define FR_ROWS 4
#define FR_VNNI 1
#define FR_PRODUCTS_ONLY 1
#include "kernels_isa.inl"
