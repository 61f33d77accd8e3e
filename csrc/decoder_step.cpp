// fastreader::decoder_step_ on the CPU: all decoder layers of one step of writing, in one call.
//
// Each layer is that of decoder_layer_in, decode_attention and decoder_layer_out_, and gives their bits. Keys and values
// are written where the texts keep them, and the threads stay awake from one product to the next (crew.h).

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <algorithm>
#include <vector>

#include "decode_attention.h"
#include "decoder_layer.h"

namespace fastreader {
namespace {

constexpr size_t kNorms = 2, kWeights = 4, kRanges = 4; // of a layer; tensors of a window's ranges

using Biases = c10::List<std::optional<at::Tensor>>;

// Tensors of all layers, several of each.
struct Layers {
  at::TensorList norms, packed, head_norms;
  const Biases& biases;
  double epsilon, head_epsilon;
  Layout layout;

  LayerIn in(size_t layer, int64_t hidden, const Heads& heads) const {
    const std::optional<at::Tensor> bias = bias_of(layer, 0), query = head_norm(layer, 0), key = head_norm(layer, 1);
    return LayerIn(hidden, {norms[kNorms * layer], epsilon, packed[kWeights * layer], bias, query, key, head_epsilon}, heads,
                   layout);
  }

  LayerOut out(size_t layer, int64_t hidden, const Heads& heads, int64_t inner, c10::string_view activation) const {
    const std::optional<at::Tensor> out = bias_of(layer, 1), gate = bias_of(layer, 2), down = bias_of(layer, 3);
    const at::Tensor* const weight = &packed[kWeights * layer];
    return LayerOut(hidden, heads.query * heads.size,
                    {weight[1], out, norms[kNorms * layer + 1], epsilon, weight[2], gate, weight[3], down}, inner, activation,
                    layout);
  }

 private:
  std::optional<at::Tensor> bias_of(size_t layer, size_t weight) const {
    return biases.empty() ? std::nullopt : biases.get(kWeights * layer + weight);
  }
  std::optional<at::Tensor> head_norm(size_t layer, size_t which) const {
    if (head_norms.empty()) return std::nullopt;
    return head_norms[2 * layer + which];
  }
};

void check_count(const char* name, size_t got, size_t wanted) {
  TORCH_CHECK(got == wanted, "decoder_step_: expected ", wanted, " ", name, ", got ", got);
}

// A row written to a foreign slot would be read as another text's keys, one past the end as nobody's.
void check_slots(const at::Tensor& slots, int64_t rows, const at::Tensor& keys, const at::Tensor& values,
                 const Heads& heads, at::ScalarType type) {
  for (const at::Tensor* kept : {&keys, &values}) {
    TORCH_CHECK(kept->dim() == 3 && kept->is_contiguous() && kept->scalar_type() == type && kept->size(1) == heads.key &&
                    kept->size(2) == heads.size,
                "decoder_step_: new keys and values must be contiguous ", type, " [S, ", heads.key, ", ", heads.size,
                "], got ", kept->scalar_type(), " ", kept->sizes());
    const int64_t* const slot = slots.const_data_ptr<int64_t>();
    for (int64_t r = 0; r < rows; ++r) {
      TORCH_CHECK(0 <= slot[r] && slot[r] < kept->size(0), "decoder_step_: slot ", slot[r], " of ", kept->size(0));
    }
  }
}

void decoder_step(const at::Tensor& stream, at::TensorList norms, double epsilon, at::TensorList packed,
                  const Biases& biases, at::TensorList head_norms, double head_epsilon,
                  const std::optional<at::Tensor>& cosine, const std::optional<at::Tensor>& sine, at::IntArrayRef rotates,
                  int64_t heads_in, int64_t key_heads, int64_t size, int64_t inner, c10::string_view activation,
                  at::TensorList keys, at::TensorList values, at::TensorList new_keys, at::TensorList new_values,
                  const at::Tensor& slots, at::TensorList ranges_in, at::IntArrayRef ranges_of, double scale,
                  std::optional<double> softcap, const InputPrecision& input_precision, c10::string_view weight_type,
                  c10::string_view isa) {
  check_stream(stream, "decoder_step_");
  const int64_t rows = stream.size(0), hidden = stream.size(1);
  const size_t count = keys.size();
  check_count("norms", norms.size(), kNorms * count);
  check_count("packed weights", packed.size(), kWeights * count);
  check_count("biases", biases.size(), biases.empty() ? 0 : kWeights * count);
  check_count("norms of heads", head_norms.size(), head_norms.empty() ? 0 : 2 * count);
  check_count("values", values.size(), count);
  check_count("new keys", new_keys.size(), count);
  check_count("new values", new_values.size(), count);
  check_count("layers that rotate or not", rotates.size(), count);
  check_count("windows of layers", ranges_of.size(), count);
  check_count("tensors of ranges", ranges_in.size() % kRanges, 0);
  TORCH_CHECK(slots.scalar_type() == at::kLong && slots.dim() == 1 && slots.is_contiguous() && slots.size(0) == rows,
              "decoder_step_: slots must be contiguous int64 [", rows, "]");
  if (rows == 0 || count == 0) return;
  std::vector<KeyRanges> ranges;
  for (size_t i = 0; i < ranges_in.size(); i += kRanges) {
    ranges.emplace_back(ranges_in[i], ranges_in[i + 1], ranges_in[i + 2], ranges_in[i + 3]);
  }
  const Heads heads{heads_in, key_heads, size};
  heads.check("decoder_step_");
  const Layers layers{norms, packed, head_norms, biases, epsilon, head_epsilon, {input_precision, weight_type, isa}};
  const Angles angles = Angles::of(cosine, sine, rows, size);
  const Kernels& kernels = kernels_for(resolve_isa(std::string(isa)), Mode::bf16);
  const at::ScalarType type = layers.layout.rounds() ? at::kBFloat16 : at::kFloat;
  const int64_t width = heads.query * size;
  const at::Tensor query = at::empty({rows, heads.query, size}, stream.options().dtype(type));
  const at::Tensor attended = at::empty({rows, width}, stream.options());
  const at::Tensor rounded = type == at::kFloat ? attended : at::empty({rows, width}, attended.options().dtype(type));
  const at::Tensor lse = at::empty({rows, heads.query}, stream.options());
  const int64_t* const slot = slots.const_data_ptr<int64_t>();
  float* const sums = attended.mutable_data_ptr<float>();
  at::BFloat16* const to = type == at::kFloat ? nullptr : rounded.mutable_data_ptr<at::BFloat16>();
  const int64_t together = heads.query / heads.key * size; // values of the query heads of a key head
  // The next product takes attention's output in the type of the operands, as transformers' interface returns it.
  const auto round = [&](int64_t row, int64_t head) {
    const int64_t at = row * width + head * together;
    if (to != nullptr) std::copy(sums + at, sums + at + together, to + at);
  };
  LayerBuffers buffers;
  with_crew([&] {
    for (size_t i = 0; i < count; ++i) {
      TORCH_CHECK(0 <= ranges_of[i] && ranges_of[i] < static_cast<int64_t>(ranges.size()), "decoder_step_: no ranges ",
                  ranges_of[i]);
      check_slots(slots, rows, new_keys[i], new_values[i], heads, type);
      LayerIn before = layers.in(i, hidden, heads);
      before.run(stream, rotates[i] != 0 ? angles : Angles{}, HeadRows::of(query), HeadRows::of(new_keys[i], slot),
                 HeadRows::of(new_values[i], slot), buffers);
      RowAttention attention(query, {keys[i], new_keys[i]}, {values[i], new_values[i]}, ranges[ranges_of[i]], scale,
                             softcap);
      TORCH_CHECK(attention.args.value_size == size, "decoder_step_: values must have the size of keys");
      attention.run(kernels, sums, lse.mutable_data_ptr<float>(), round);
      layers.out(i, hidden, heads, inner, activation).run(stream, source_of(rounded, -1), buffers);
    }
  });
}

} // namespace

TORCH_LIBRARY_IMPL(fastreader, CPU, m) { m.impl("decoder_step_", &decoder_step); }

} // namespace fastreader
