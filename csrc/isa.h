// The instruction sets the kernels are compiled for, and which of them this machine has.
#pragma once

#include <string>

namespace fastreader {

// In rising order: a machine that has one has all before it.
enum class Isa { portable = 0, avx2, avx512, avx512_bf16, amx };

constexpr int kIsaCount = 5;

const char* isa_name(Isa isa);

// The best instruction set this machine and its operating system let a process use.
Isa best_isa();

// The one named, or the best for "auto"; throws when the name is unknown or the machine lacks it.
Isa resolve_isa(const std::string& name);

} // namespace fastreader
