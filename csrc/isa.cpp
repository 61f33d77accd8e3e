#include "isa.h"

#include <c10/util/Exception.h>

#include <array>

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace fastreader {
namespace {

constexpr const char* kNames[kIsaCount] = {"portable",    "avx2",        "avx2_vnni", "avx512",
                                            "avx512_vnni", "avx512_bf16", "amx"};

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

bool detect(Isa isa) {
  __builtin_cpu_init();
  unsigned a = 0, b = 0, c = 0, d = 0;
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  switch (isa) {
    case Isa::portable: return true;
    case Isa::avx2: return avx2;
    case Isa::avx2_vnni: return avx2 && __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a >> 4 & 1);
    case Isa::avx512: return avx512;
    case Isa::avx512_vnni: return avx512 && __builtin_cpu_supports("avx512vnni");
    case Isa::avx512_bf16: return avx512 && __builtin_cpu_supports("avx512bf16");
    case Isa::amx: // AMX-TILE, AMX-BF16
      return avx512 && __builtin_cpu_supports("avx512bf16") && __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d >> 24 & 1) &&
             (d >> 22 & 1) && allow_amx();
  }
  return false;
}
#else
bool detect(Isa isa) { return isa == Isa::portable; }
#endif

} // namespace

const char* isa_name(Isa isa) { return kNames[static_cast<int>(isa)]; }

bool has_isa(Isa isa) {
  static const std::array<bool, kIsaCount> found = [] {
    std::array<bool, kIsaCount> all{};
    for (int i = 0; i < kIsaCount; ++i) all[i] = detect(static_cast<Isa>(i));
    return all;
  }();
  return found[static_cast<int>(isa)];
}

Isa best_isa() {
  int best = kIsaCount - 1;
  while (!has_isa(static_cast<Isa>(best))) --best; // portable is always there
  return static_cast<Isa>(best);
}

Isa resolve_isa(const std::string& name) {
  if (name == "auto") return best_isa();
  for (int i = 0; i < kIsaCount; ++i) {
    if (name == kNames[i]) {
      TORCH_CHECK(has_isa(static_cast<Isa>(i)), "instruction set ", name, " is missing on this machine, ",
                  "whose best is ", isa_name(best_isa()));
      return static_cast<Isa>(i);
    }
  }
  TORCH_CHECK(false, "instruction set must be auto, portable, avx2, avx2_vnni, avx512, avx512_vnni, avx512_bf16 or amx, got ",
              name);
}

} // namespace fastreader
