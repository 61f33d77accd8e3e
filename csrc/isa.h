// The instruction sets for which the kernels are compiled, and the best one of this machine.
#pragma once

#include <string>

namespace fastreader {

// In rising order: a machine that has one also has all before it.
enum class Isa { portable = 0, avx2, avx512, avx512_bf16, amx };

constexpr int kIsaCount = 5;

const char* isa_name(Isa isa);

// Return the best instruction set that the machine and its operating system let a process use.
Isa best_isa();

// Return the named one, or the best for "auto"; throw if the name is unknown or the machine lacks it.
Isa resolve_isa(const std::string& name);

} // namespace fastreader
