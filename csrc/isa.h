// The instruction sets for which the kernels are compiled, and the best one of this machine.
#pragma once

namespace fastreader {

// In rising order: of those that a machine has, the kernels of a later one are at least as fast.
enum class Isa { portable = 0, avx2, avx2_vnni, avx512, avx512_vnni, avx512_bf16, amx, neon, neon_bf16 };

constexpr int kIsaCount = 9;

const char* isa_name(Isa isa);

// Return whether the machine and its operating system let a process use an instruction set, and this build has its kernels.
bool has_isa(Isa isa);

// Return the best instruction set that `has_isa`.
Isa best_isa();

} // namespace fastreader
