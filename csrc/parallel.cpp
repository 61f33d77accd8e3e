#include "parallel.h"

namespace fastreader {

Isa resolve_isa(const std::string& name) {
  if (name == "auto") return best_isa();
  std::string names = "auto";
  for (int i = 0; i < kIsaCount; ++i) {
    const Isa isa = static_cast<Isa>(i);
    if (name == isa_name(isa)) {
      TORCH_CHECK(has_isa(isa), "instruction set ", name, " is missing on this machine or in this build, whose best is ",
                  isa_name(best_isa()));
      return isa;
    }
    names += std::string(i + 1 < kIsaCount ? ", " : " or ") + isa_name(isa);
  }
  TORCH_CHECK(false, "instruction set must be ", names, ", got ", name);
}

const Kernels& kernels_for(Isa isa, Mode mode) {
  for (const Mode wanted : {mode, Mode::f32}) {
    for (int i = static_cast<int>(isa); i >= 0; --i) {
      const Isa lower = static_cast<Isa>(i);
      if (!has_isa(lower)) continue; // a machine with AVX-512 need not have AVX-VNNI
      if (const Kernels* kernels = kernels_of(lower, wanted)) return *kernels;
    }
  }
  TORCH_CHECK(false, "no kernels for ", isa_name(isa)); // the portable table has fp32
}

} // namespace fastreader
