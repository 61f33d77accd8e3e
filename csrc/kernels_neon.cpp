// The kernels compiled for NEON, which every 64-bit ARM has.
#define FR_ISA neon
#define FR_WIDTH 4
#define FR_ROWS 8
#define FR_NEON 1
#include "kernels_isa.inl"
