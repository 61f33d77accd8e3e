// A decoder layer before and after attention, for the ops that contain one.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <optional>

#include "buffer.h"
#include "linear.h"

namespace fastreader {

void check_stream(const at::Tensor& stream, const char* op);

// How the weights of a layer were packed.
struct Layout {
  InputPrecision input_precision;
  c10::string_view weight_type;
  c10::string_view isa;

  bool rounds() const { return !input_precision.has_value(); } // the operands to bf16
  Product product(int64_t size, const at::Tensor& packed, int64_t width, const std::optional<at::Tensor>& bias) const {
    return product_of(size, packed, width, bias, input_precision, weight_type, isa);
  }
};

// Normalises heads (each row has several) or whole rows, in place; nothing without a weight.
struct HeadNorm {
  at::Tensor weight;
  float epsilon = 0;
  void operator()(const Kernels& kernels, float* first, int64_t rows, int64_t stride, int64_t features) const;
};

// Normalises rows of the stream, rounded if the next product would round them.
struct StreamNorm {
  at::Tensor weight;
  float epsilon = 0;
  bool to_bf16 = false;
  void operator()(const Kernels& kernels, const at::Tensor& stream, int64_t begin, int64_t count, void* out) const;
  // Normalise all rows, block by block, into the buffer.
  Source all(const Kernels& kernels, const at::Tensor& stream, Buffer& buffer) const;
};

// Cosine and sine of a rotary embedding, float32 [T, R] each; undefined for none.
struct Angles {
  at::Tensor cosine, sine;
  static Angles of(const std::optional<at::Tensor>& cosine, const std::optional<at::Tensor>& sine, int64_t rows,
                   int64_t size);
  int64_t size() const { return cosine.defined() ? cosine.size(1) : 0; }
};

struct Heads {
  int64_t query, key, size;
  void check(const char* op) const; // that numbers of bytes do not overflow
};

// Rows of heads [H, D] to write: row r goes to row r, or to row index[r].
struct HeadRows {
  char* first;
  int64_t row_bytes;
  bool bf16;
  const int64_t* index;
  static HeadRows of(const at::Tensor& out, const int64_t* index = nullptr);
  char* row(int64_t r) const { return first + (index == nullptr ? r : index[r]) * row_bytes; }
};

// Memory of a layer, for the next one too.
struct LayerBuffers {
  Buffer normed, wide;
};

struct LayerInParts {
  const at::Tensor& norm;
  double epsilon;
  const at::Tensor& packed;
  const std::optional<at::Tensor>&bias, &query_norm, &key_norm;
  double head_epsilon;
};

// Norm, joined projections, norms of heads and rotary embedding. Queries and keys that are rounded to bf16 are multiplied
// by a Hadamard matrix first (ops/pointwise/api.py).
struct LayerIn {
  LayerIn(int64_t hidden, const LayerInParts& parts, const Heads& heads, const Layout& layout);
  void run(const at::Tensor& stream, const Angles& angles, const HeadRows& query, const HeadRows& key,
           const HeadRows& value, LayerBuffers& buffers);

  Heads heads;
  StreamNorm norm;
  Product product;
  HeadNorm query_norm, key_norm;

 private:
  void emit(const Kernels& kernels, const HeadRows& out, int64_t some, int64_t begin, int64_t count, const float* from,
            const Angles& angles, bool hadamard) const;
};

struct LayerOutParts {
  const at::Tensor& out;
  const std::optional<at::Tensor>& out_bias;
  const at::Tensor& norm;
  double epsilon;
  const at::Tensor& inner;
  const std::optional<at::Tensor>& inner_bias;
  const at::Tensor& down;
  const std::optional<at::Tensor>& down_bias;
};

// Attention's output projection, then the gated feed-forward of its norm, both added to the stream.
struct LayerOut {
  LayerOut(int64_t hidden, int64_t attended, const LayerOutParts& parts, int64_t inner, c10::string_view activation,
           const Layout& layout);
  void run(const at::Tensor& stream, const Source& attended, LayerBuffers& buffers);

  StreamNorm norm;
  Product out, gate, down;
};

} // namespace fastreader
