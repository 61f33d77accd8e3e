// The kernels compiled for AVX2 and FMA.
#define FR_ISA avx2
#define FR_TARGET "avx2,fma"
#define FR_WIDTH 8
#define FR_ROWS 4
#include "kernels_isa.inl"
