// fastreader::experts on the CPU: the gated feed-forwards of a mixture, each on the tokens that the router sends it.
//
// All threads share the products of an expert, or of several with few rows, so that each weight is read once. Results are
// added to a token in the order of the experts, whatever other tokens there are.

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/clamp.h>
#include <ATen/ops/clamp_max.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/zeros_like.h>
#include <torch/library.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "decoder_layer.h"

namespace fastreader {
namespace {

using Biases = c10::List<std::optional<at::Tensor>>;

constexpr int64_t kFewRows = 64; // between whose products threads stay awake
constexpr int64_t kRowsAtOnce = 512; // of several experts
constexpr int64_t kMostRows = 2048; // of one expert at once: memory
constexpr int64_t kGrain = 1 << 16; // values that are moved by one thread at least

// The tokens of each expert, in their order: those of expert e are `places` from starts[e] to starts[e + 1] - 1, numbers of
// values of `chosen`.
struct Routes {
  std::vector<int64_t> starts, places;

  // Return the expert of a place.
  int64_t expert_at(int64_t place) const {
    return std::upper_bound(starts.begin(), starts.end(), place) - starts.begin() - 1;
  }
  Routes(const at::Tensor& chosen, int64_t experts) : starts(experts + 1) {
    const int64_t* const expert = chosen.const_data_ptr<int64_t>();
    for (int64_t i = 0; i < chosen.numel(); ++i) {
      TORCH_CHECK(0 <= expert[i] && expert[i] <= experts, "experts: expected ids from 0 to ", experts, ", got ", expert[i]);
      if (expert[i] < experts) ++starts[expert[i] + 1];
    }
    for (int64_t e = 0; e < experts; ++e) starts[e + 1] += starts[e];
    places.resize(starts[experts]);
    std::vector<int64_t> next(starts.begin(), starts.end() - 1);
    for (int64_t i = 0; i < chosen.numel(); ++i) {
      if (expert[i] < experts) places[next[expert[i]]++] = i;
    }
  }
};

// How the halves of a product become what the next one takes.
struct Gate {
  c10::string_view activation;
  at::ArrayRef<double> constants;
  bool in_pairs() const { return activation == "clamped"; }

  void check(int64_t width) const {
    TORCH_CHECK(constants.size() == (in_pairs() ? 2u : 0u), "experts: activation ", std::string(activation), " has ",
                in_pairs() ? 2 : 0, " constants, got ", constants.size());
    TORCH_CHECK(0 < width && width % (in_pairs() ? 2 : 2 * kStrip) == 0, "experts: the width of the gate must be a multiple of ",
                in_pairs() ? 1 : kStrip, ", got ", width / 2.0);
    if (!in_pairs()) activation_of(activation);
  }

  // GPT-OSS: pairs of a gate and a value, both limited.
  at::Tensor operator()(const at::Tensor& product, at::ScalarType type) const {
    const double factor = constants[0], limit = constants[1];
    const at::Tensor gates = product.slice(1, 0, product.size(1), 2).clamp_max(limit);
    const at::Tensor values = product.slice(1, 1, product.size(1), 2).clamp(-limit, limit);
    return at::sigmoid(gates.mul(factor)).mul_(gates).mul_(values.add(1)).to(type);
  }
};

at::Tensor experts(const at::Tensor& input_in, const at::Tensor& chosen_in, const at::Tensor& factors_in,
                   at::TensorList inner, at::TensorList down, const Biases& biases, int64_t width,
                   c10::string_view activation, at::ArrayRef<double> constants, const InputPrecision& input_precision,
                   c10::string_view weight_type, c10::string_view isa) {
  const int64_t count = static_cast<int64_t>(inner.size());
  const Gate gate{activation, constants};
  gate.check(width);
  TORCH_CHECK(down.size() == inner.size() && (biases.empty() || biases.size() == 2 * inner.size()),
              "experts: expected two weights and two biases or none of each of ", count, " experts");
  TORCH_CHECK(input_in.dim() == 2 && input_in.size(1) > 0 && input_in.scalar_type() == at::kFloat && chosen_in.dim() == 2 &&
                  chosen_in.scalar_type() == at::kLong && chosen_in.size(0) == input_in.size(0) &&
                  factors_in.sizes() == chosen_in.sizes() && factors_in.scalar_type() == at::kFloat,
              "experts: expected float32 [T, E] with E > 0, int64 [T, k] and float32 [T, k], got ", input_in.sizes(), " ",
              input_in.scalar_type(), ", ", chosen_in.sizes(), " ", chosen_in.scalar_type(), " and ", factors_in.sizes(), " ",
              factors_in.scalar_type());
  const at::Tensor input = input_in.contiguous(), chosen = chosen_in.contiguous(), factors = factors_in.contiguous();
  const at::Tensor out = at::zeros_like(input);
  const int64_t size = input.size(1), each = chosen.size(1), half = width / 2;
  const Layout layout{input_precision, weight_type, isa};
  const at::ScalarType type = layout.rounds() ? at::kBFloat16 : at::kFloat;
  const float *const row = input.const_data_ptr<float>(), *const factor = factors.const_data_ptr<float>();
  float* const sum = out.mutable_data_ptr<float>();
  const Routes routes(chosen, count);
  Buffer gathered, wide, gated, results;
  std::vector<Product> products;
  std::vector<Product*> pointers;
  const auto bias = [&](int64_t which) { return biases.empty() ? std::nullopt : biases.get(which); };

  // Multiply the rows at places begin to end - 1, which follow each other in memory, each by its expert's weight.
  const auto multiply_each = [&](int64_t begin, int64_t end, at::TensorList weights, int64_t which, const void* from,
                                 bool from_bf16, int64_t from_size, int64_t to_size, const auto& set_output) {
    products.clear();
    pointers.clear();
    int64_t done = 0;
    for (int64_t e = routes.expert_at(begin); done < end - begin; ++e) {
      const int64_t rows = std::min(end, routes.starts[e + 1]) - (begin + done);
      if (rows == 0) continue;
      Product& p = products.emplace_back(layout.product(from_size, weights[e], to_size, bias(2 * e + which)));
      p.args.input = {static_cast<const char*>(from) + done * from_size * (from_bf16 ? 2 : 4), from_bf16, from_size, 0};
      p.args.rows = rows;
      set_output(p, done);
      done += rows;
    }
    for (Product& p : products) pointers.push_back(&p);
    multiply_all(pointers);
  };

  const auto run = [&](int64_t begin, int64_t end) {
    const int64_t* const place = routes.places.data() + begin;
    const int64_t rows = end - begin;
    float* const taken = reinterpret_cast<float*>(gathered.of(rows * size * 4));
    at::parallel_for(0, rows, kGrain / size + 1, [&](int64_t first, int64_t last) {
      for (int64_t r = first; r < last; ++r) std::memcpy(taken + r * size, row + place[r] / each * size, size * 4);
    });
    at::Tensor limited;
    const void* halves = nullptr;
    if (gate.in_pairs()) {
      float* const product = reinterpret_cast<float*>(wide.of(rows * width * 4));
      multiply_each(begin, end, inner, 0, taken, false, size, width,
                    [&](Product& p, int64_t done) { p.to(After::store, product + done * width, width, false); });
      limited = gate(at::from_blob(product, {rows, width}, input.options()), type);
      halves = limited.const_data_ptr();
    } else {
      char* const to = gated.of(rows * half * 4);
      multiply_each(begin, end, inner, 0, taken, false, size, width, [&](Product& p, int64_t done) {
        p.args.activation = activation_of(activation);
        p.to(After::gate, to + done * half * (layout.rounds() ? 2 : 4), half, layout.rounds());
      });
      halves = to;
    }
    float* const result = reinterpret_cast<float*>(results.of(rows * size * 4));
    multiply_each(begin, end, down, 1, halves, layout.rounds(), half, size,
                  [&](Product& p, int64_t done) { p.to(After::store, result + done * size, size, false); });
    at::parallel_for(0, size, kGrain / rows + 1, [&](int64_t first, int64_t last) { // columns: rows may be of one token
      for (int64_t r = 0; r < rows; ++r) {
        float* const to = sum + place[r] / each * size;
        const float by = factor[place[r]], *const from = result + r * size;
        for (int64_t i = first; i < last; ++i) to[i] += by * from[i];
      }
    });
  };
  const auto run_all = [&] {
    const int64_t all = routes.starts[count];
    for (int64_t begin = 0, end = 0; begin < all; begin = end) {
      int64_t expert = routes.expert_at(begin); // as many experts at once as have few rows
      while (expert < count && routes.starts[expert + 1] - begin <= kRowsAtOnce) end = routes.starts[++expert];
      if (end == begin) end = std::min(begin + kMostRows, routes.starts[expert + 1]);
      run(begin, end);
    }
  };
  input.size(0) <= kFewRows ? with_crew(run_all) : run_all();
  return out;
}

} // namespace

TORCH_LIBRARY_IMPL(fastreader, CPU, m) { m.impl("experts", &experts); }

} // namespace fastreader
