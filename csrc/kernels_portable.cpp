// The kernels compiled for any machine (vectors of 4 floats, as SSE2 and NEON have).
#define FR_ISA portable
#define FR_COMPILED 1
#define FR_WIDTH 4
#define FR_ROWS 4
#include "kernels_isa.inl"
