// fastreader::rms_norm, rotary and gate on the CPU: the work on each token between matrix products.

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "parallel.h"

namespace fastreader {
namespace {

constexpr int64_t kTaskBytes = 256 << 10; // of input read by one task

template <typename Run>
void over_rows(const Kernels& kernels, int64_t rows, int64_t row_bytes, const Run& run) {
  const int64_t block = std::max<int64_t>(1, kTaskBytes / std::max<int64_t>(row_bytes, 1));
  run_blocks(kernels, rows, block, 0, [&](int64_t begin, int64_t count, char*) { run(begin, begin + count); });
}

const Kernels& any_kernels(c10::string_view isa) { return kernels_for(resolve_isa(std::string(isa)), Mode::bf16); }

at::Tensor rms_norm(const at::Tensor& input_in, const at::Tensor& weight_in, double epsilon, bool to_bf16,
                    c10::string_view isa) {
  TORCH_CHECK(input_in.dim() == 2 && input_in.scalar_type() == at::kFloat && weight_in.scalar_type() == at::kFloat &&
                  weight_in.dim() == 1 && weight_in.size(0) == input_in.size(1),
              "rms_norm: the CPU kernel takes float32 [T, E] and [E], got ", input_in.sizes(), " and ", weight_in.sizes());
  const at::Tensor input = with_contiguous_rows(input_in), weight = weight_in.contiguous();
  const at::Tensor out = at::empty(input.sizes(), input.options().dtype(to_bf16 ? at::kBFloat16 : at::kFloat));
  if (out.numel() == 0) return out;
  const NormArgs a{input.const_data_ptr<float>(), input.stride(0),        input.size(1),
                   weight.const_data_ptr<float>(), static_cast<float>(epsilon), out.mutable_data_ptr(), input.size(1),
                   to_bf16};
  const Kernels& kernels = any_kernels(isa);
  over_rows(kernels, input.size(0), a.size * 4, [&](int64_t begin, int64_t end) { kernels.rms_norm(a, begin, end); });
  return out;
}

at::Tensor rotary(const at::Tensor& input_in, const at::Tensor& cosine_in, const at::Tensor& sine_in, bool hadamard,
                  bool to_bf16, c10::string_view isa) {
  TORCH_CHECK(input_in.dim() == 3 && input_in.scalar_type() == at::kFloat, "rotary: the CPU kernel takes float32 ",
              "[T, H, D], got ", input_in.sizes(), " ", input_in.scalar_type());
  TORCH_CHECK(cosine_in.dim() == 2 && cosine_in.sizes() == sine_in.sizes() && cosine_in.size(0) == input_in.size(0) &&
                  cosine_in.size(1) <= input_in.size(2) && cosine_in.size(1) % 2 == 0 &&
                  cosine_in.scalar_type() == at::kFloat && sine_in.scalar_type() == at::kFloat,
              "rotary: cosine and sine must be float32 [T, R] with R even and at most D, got ", cosine_in.sizes(), " and ",
              sine_in.sizes());
  const at::Tensor input = with_contiguous_rows(input_in), cosine = cosine_in.contiguous(), sine = sine_in.contiguous();
  const at::Tensor out = at::empty(input.sizes(), input.options().dtype(to_bf16 ? at::kBFloat16 : at::kFloat));
  if (out.numel() == 0) return out;
  const RotaryArgs a{input.const_data_ptr<float>(), input.stride(0),   input.stride(1),
                     input.size(1),                 input.size(2),     cosine.size(1),
                     cosine.const_data_ptr<float>(), sine.const_data_ptr<float>(), cosine.size(1),
                     out.mutable_data_ptr(),        to_bf16,           hadamard};
  const Kernels& kernels = any_kernels(isa);
  over_rows(kernels, input.size(0), a.heads * a.size * 4,
            [&](int64_t begin, int64_t end) { kernels.rotary(a, begin, end); });
  return out;
}

at::Tensor gate(const at::Tensor& gate_in, const at::Tensor& up_in, c10::string_view activation, bool to_bf16,
                c10::string_view isa) {
  TORCH_CHECK(gate_in.dim() == 2 && gate_in.sizes() == up_in.sizes() && gate_in.scalar_type() == at::kFloat &&
                  up_in.scalar_type() == at::kFloat,
              "gate: the CPU kernel takes two float32 [T, F], got ", gate_in.sizes(), " and ", up_in.sizes());
  TORCH_CHECK(activation == "silu" || activation == "gelu_tanh", "gate: unknown activation ", std::string(activation));
  const at::Tensor gates = with_contiguous_rows(gate_in), up = with_contiguous_rows(up_in);
  const at::Tensor out = at::empty(gates.sizes(), gates.options().dtype(to_bf16 ? at::kBFloat16 : at::kFloat));
  if (out.numel() == 0) return out;
  const GateArgs a{gates.const_data_ptr<float>(), gates.stride(0), up.const_data_ptr<float>(), up.stride(0),
                   gates.size(1),                 activation == "silu" ? Activation::silu : Activation::gelu_tanh,
                   out.mutable_data_ptr(),        to_bf16};
  const Kernels& kernels = any_kernels(isa);
  over_rows(kernels, gates.size(0), a.size * 8, [&](int64_t begin, int64_t end) { kernels.gate(a, begin, end); });
  return out;
}

} // namespace

TORCH_LIBRARY_IMPL(fastreader, CPU, m) {
  m.impl("rms_norm", &rms_norm);
  m.impl("rotary", &rotary);
  m.impl("gate", &gate);
}

} // namespace fastreader
