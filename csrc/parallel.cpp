#include "parallel.h"

namespace fastreader {

const Kernels& kernels_for(Isa isa, Mode mode) {
  using Table = const Kernels* (*)(Mode);
  constexpr Table kTables[kIsaCount] = {kernels_portable,    kernels_avx2,        kernels_avx2_vnni, kernels_avx512,
                                         kernels_avx512_vnni, kernels_avx512_bf16, kernels_amx};
  for (const Mode wanted : {mode, Mode::f32}) {
    for (int i = static_cast<int>(isa); i >= 0; --i) {
      if (!has_isa(static_cast<Isa>(i))) continue; // a machine with AVX-512 need not have AVX-VNNI
      if (const Kernels* kernels = kTables[i](wanted)) return *kernels;
    }
  }
  TORCH_CHECK(false, "no kernels for ", isa_name(isa)); // the portable table has fp32
}

} // namespace fastreader
