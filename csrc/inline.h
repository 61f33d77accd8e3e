// A kernel is inlined whole into its entry point, so that no function compiled for one instruction set is shared with,
// or called by, code compiled for another.
#pragma once

#define FR_INLINE static inline __attribute__((always_inline))
#define FR_MEMBER inline __attribute__((always_inline))
