#include "isa.h"

#include <c10/util/Exception.h>

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace fastreader {
namespace {

constexpr const char* kNames[kIsaCount] = {"portable", "avx2", "avx512", "avx512_bf16", "amx"};

#if defined(__x86_64__)
// Linux gives the 8 KB tile state only to processes that request it (arch_prctl, Documentation/arch/x86/xstate).
bool allow_amx() {
#if defined(__linux__)
  constexpr int kRequestPermission = 0x1023;
  constexpr int kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}

Isa detect() {
  __builtin_cpu_init();
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return Isa::portable;
  if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") || !__builtin_cpu_supports("avx512dq") ||
      !__builtin_cpu_supports("avx512vl")) {
    return Isa::avx2;
  }
  if (!__builtin_cpu_supports("avx512bf16")) return Isa::avx512;
  unsigned a = 0, b = 0, c = 0, d = 0;
  __get_cpuid_count(7, 0, &a, &b, &c, &d);
  const bool tiles = (d >> 24 & 1) && (d >> 22 & 1); // AMX-TILE, AMX-BF16
  return tiles && allow_amx() ? Isa::amx : Isa::avx512_bf16;
}
#else
Isa detect() { return Isa::portable; }
#endif

} // namespace

const char* isa_name(Isa isa) { return kNames[static_cast<int>(isa)]; }

Isa best_isa() {
  static const Isa best = detect();
  return best;
}

Isa resolve_isa(const std::string& name) {
  if (name == "auto") return best_isa();
  for (int i = 0; i < kIsaCount; ++i) {
    if (name == kNames[i]) {
      TORCH_CHECK(i <= static_cast<int>(best_isa()), "instruction set ", name, " is missing on this machine, ",
                  "whose best is ", isa_name(best_isa()));
      return static_cast<Isa>(i);
    }
  }
  TORCH_CHECK(false, "instruction set must be auto, portable, avx2, avx512, avx512_bf16 or amx, got ", name);
}

} // namespace fastreader
