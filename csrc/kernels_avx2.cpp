// The kernels compiled for AVX2, FMA and F16C.
#define FR_ISA avx2
#define FR_TARGET "avx2,fma,f16c"
#define FR_WIDTH 8
#define FR_ROWS 4
#include "kernels_isa.inl"
