// Everything in a kernel is inlined into its entry point: no function compiled for one instruction set can then be
// shared with, or called by, code compiled for another.
#pragma once

#define FR_INLINE static inline __attribute__((always_inline))
#define FR_MEMBER inline __attribute__((always_inline))
