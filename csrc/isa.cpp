#include "isa.h"

#include <array>

#include "kernels.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#if defined(__linux__) && defined(__x86_64__)
#include <sys/syscall.h>
#include <unistd.h>
#elif defined(__linux__) && defined(__aarch64__)
#include <sys/auxv.h>
#elif defined(__APPLE__) && defined(__aarch64__)
#include <sys/sysctl.h>
#endif

namespace fastreader {
namespace {

constexpr const char* kNames[kIsaCount] = {"portable",    "avx2", "avx2_vnni", "avx512",   "avx512_vnni",
                                            "avx512_bf16", "amx",  "neon",      "neon_bf16"};

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
  const bool halves = __get_cpuid(1, &a, &b, &c, &d) && (c >> 29 & 1); // F16C, which older compilers have no name for
  const bool avx2 = halves && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
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
    default: return false;
  }
}
#elif defined(__aarch64__)
bool has_bf16() {
#if defined(__linux__)
  constexpr unsigned long kBf16 = 1ul << 14; // HWCAP2_BF16, which older headers lack
  return (getauxval(AT_HWCAP2) & kBf16) != 0;
#elif defined(__APPLE__)
  int found = 0;
  size_t size = sizeof(found);
  return sysctlbyname("hw.optional.arm.FEAT_BF16", &found, &size, nullptr, 0) == 0 && found != 0;
#else
  return false;
#endif
}

bool detect(Isa isa) {
  switch (isa) {
    case Isa::portable: return true;
    case Isa::neon: return true; // part of the architecture
    case Isa::neon_bf16: return has_bf16();
    default: return false;
  }
}
#else
bool detect(Isa isa) { return isa == Isa::portable; }
#endif

// Whether there are kernels of an instruction set: older compilers lack some, and builds for one machine leave others out.
bool compiled(Isa isa) {
  constexpr Mode kModes[] = {Mode::f32, Mode::bf16, Mode::scaled}; // each set has at least one of them
  for (Mode mode : kModes)
    if (kernels_of(isa, mode) != nullptr) return true;
  return false;
}

} // namespace

const char* isa_name(Isa isa) { return kNames[static_cast<int>(isa)]; }

bool has_isa(Isa isa) {
  static const std::array<bool, kIsaCount> found = [] {
    std::array<bool, kIsaCount> all{};
    for (int i = 0; i < kIsaCount; ++i) all[i] = compiled(static_cast<Isa>(i)) && detect(static_cast<Isa>(i));
    return all;
  }();
  return found[static_cast<int>(isa)];
}

Isa best_isa() {
  int best = kIsaCount - 1;
  while (!has_isa(static_cast<Isa>(best))) --best; // portable is always there
  return static_cast<Isa>(best);
}

const Kernels* kernels_of(Isa isa, Mode mode) {
  using Table = const Kernels* (*)(Mode);
  constexpr Table kTables[kIsaCount] = {kernels_portable,    kernels_avx2,        kernels_avx2_vnni,
                                        kernels_avx512,      kernels_avx512_vnni, kernels_avx512_bf16,
                                        kernels_amx,         kernels_neon,        kernels_neon_bf16};
  return kTables[static_cast<int>(isa)](mode);
}

} // namespace fastreader
