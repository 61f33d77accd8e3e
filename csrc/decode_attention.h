// Attention of rows that each see ranges of keys, for the ops that contain it.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/util/SmallVector.h>

#include <array>
#include <optional>

#include "parallel.h"

namespace fastreader {

// The keys that each row sees: start[r]..stop[r]-1 of part[r] for r in row_ptr[b]..row_ptr[b + 1]-1.
struct KeyRanges {
  KeyRanges(const at::Tensor& row_ptr, const at::Tensor& part, const at::Tensor& start, const at::Tensor& stop);

  // A range past its keys would read foreign memory.
  void check(at::TensorList keys) const;

  std::array<at::Tensor, 4> tensors;
  int64_t rows, count;
  const int32_t *row_ptr, *part, *start, *stop;
};

// What attention may have besides keys; the tensors must outlive the attention.
struct HeadTerms {
  std::optional<at::Tensor> sinks, slopes; // [Hq]
  std::optional<at::Tensor> offset; // int32, one for each range, with slopes
};

// The checked attention of one layer. It keeps its tensors alive, but not the ranges.
class RowAttention {
 public:
  RowAttention(const at::Tensor& query, at::TensorList keys, at::TensorList values, const KeyRanges& ranges, double scale,
               std::optional<double> softcap, const HeadTerms& terms = {});
  RowAttention(const RowAttention&) = delete; // args point into it

  // Write out [B, Hq, Dv] and lse [B, Hq]; call done(row, key head) on the thread that has finished these heads.
  template <typename Done>
  void run(const Kernels& kernels, float* out, float* lse, const Done& done) {
    args.out = out;
    args.lse = lse;
    run_tasks(kernels, rows * key_heads, kernels.attend_row_workspace(args), [&](int64_t i, void* workspace) {
      kernels.attend_row(args, i / key_heads, i % key_heads, workspace);
      done(i / key_heads, i % key_heads);
    });
  }

  DecodeAttentionArgs args{};
  int64_t rows, key_heads;

 private:
  at::Tensor query_;
  c10::SmallVector<at::Tensor, 2> keys_, values_;
  c10::SmallVector<Source, 2> key_sources_, value_sources_;
};

} // namespace fastreader
