// fastreader::decode_attention on the CPU: (row, key head) tasks over keys that are not copied.

#include <ATen/ATen.h>
#include <torch/library.h>

#include <vector>

#include "parallel.h"

namespace fastreader {
namespace {

constexpr int64_t kMaxSize = 256;

const int32_t* indices(const at::Tensor& tensor, int64_t length, const char* name) {
  TORCH_CHECK(tensor.scalar_type() == at::kInt && tensor.dim() == 1 && tensor.is_contiguous() &&
                  tensor.size(0) == length,
              "decode_attention: ", name, " must be contiguous int32 [", length, "], got ", tensor.scalar_type(), " ",
              tensor.sizes());
  return tensor.const_data_ptr<int32_t>();
}

// A range past its keys would read foreign memory.
void check_ranges(const DecodeAttentionArgs& a, int64_t rows, int64_t ranges, const std::vector<at::Tensor>& keys) {
  TORCH_CHECK(a.row_ptr[0] == 0 && a.row_ptr[rows] == ranges, "decode_attention: row_ptr does not fit the ranges");
  for (int64_t b = 0; b < rows; ++b) {
    TORCH_CHECK(a.row_ptr[b] <= a.row_ptr[b + 1], "decode_attention: row_ptr descends at row ", b);
  }
  for (int64_t r = 0; r < ranges; ++r) {
    TORCH_CHECK(0 <= a.part[r] && a.part[r] < static_cast<int64_t>(keys.size()), "decode_attention: range ", r,
                " is of part ", a.part[r]);
    TORCH_CHECK(0 <= a.start[r] && a.stop[r] <= keys[a.part[r]].size(0), "decode_attention: range ", r,
                " reaches past its keys");
  }
}

std::tuple<at::Tensor, at::Tensor> decode_attention(const at::Tensor& query_in, at::TensorList keys_in,
                                                 at::TensorList values_in, const at::Tensor& row_ptr,
                                                 const at::Tensor& part, const at::Tensor& start,
                                                 const at::Tensor& stop, double scale, std::optional<double> softcap,
                                                 c10::string_view isa_name) {
  const auto fits = [](const at::Tensor& t) {
    return t.dim() == 3 && (t.scalar_type() == at::kFloat || t.scalar_type() == at::kBFloat16);
  };
  TORCH_CHECK(fits(query_in), "decode_attention: query must be float32 or bfloat16 [B, Hq, D], got ", query_in.sizes());
  TORCH_CHECK(keys_in.size() == values_in.size() && !keys_in.empty(), "decode_attention: expected as many keys as ",
              "values, got ", keys_in.size(), " and ", values_in.size());
  const at::Tensor query = with_contiguous_rows(query_in);
  std::vector<at::Tensor> keys, values;
  std::vector<Source> key_sources, value_sources;
  for (size_t i = 0; i < keys_in.size(); ++i) {
    const at::Tensor &key = keys_in[i], &value = values_in[i];
    TORCH_CHECK(fits(key) && fits(value) && key.scalar_type() == value.scalar_type() &&
                    key.scalar_type() == keys_in[0].scalar_type() && key.size(0) == value.size(0) &&
                    key.size(1) == value.size(1) && key.size(2) == query.size(2) &&
                    key.size(1) == keys_in[0].size(1) && value.size(2) == values_in[0].size(2),
                "decode_attention: keys ", key.sizes(), " and values ", value.sizes(), " of part ", i, " do not fit");
    keys.push_back(with_contiguous_rows(key));
    values.push_back(with_contiguous_rows(value));
    key_sources.push_back(source_of(keys.back(), 1));
    value_sources.push_back(source_of(values.back(), 1));
  }
  const int64_t rows = query.size(0), key_heads = keys[0].size(1);
  DecodeAttentionArgs a{};
  a.query = source_of(query, 1);
  a.keys = key_sources.data();
  a.values = value_sources.data();
  a.heads = query.size(1);
  a.size = query.size(2);
  a.value_size = values[0].size(2);
  TORCH_CHECK(key_heads > 0 ? a.heads % key_heads == 0 : a.heads == 0, "decode_attention: ", a.heads,
              " query heads over ", key_heads, " key heads");
  TORCH_CHECK(a.size <= kMaxSize && a.value_size <= kMaxSize, "decode_attention: head sizes above ", kMaxSize);
  const at::Tensor out = at::empty({rows, a.heads, a.value_size}, query.options().dtype(at::kFloat));
  const at::Tensor lse = at::empty({rows, a.heads}, query.options().dtype(at::kFloat));
  if (lse.numel() == 0) return {out, lse};
  a.groups = a.heads / key_heads;
  a.padded_size = round_up(a.size, kStrip);
  a.padded_value_size = round_up(a.value_size, kStrip);
  a.row_ptr = indices(row_ptr, rows + 1, "row_ptr");
  const int64_t ranges = start.numel();
  a.part = indices(part, ranges, "part");
  a.start = indices(start, ranges, "start");
  a.stop = indices(stop, ranges, "stop");
  check_ranges(a, rows, ranges, keys);
  a.scale = static_cast<float>(scale);
  a.softcap = static_cast<float>(softcap.value_or(0));
  a.out = out.mutable_data_ptr<float>();
  a.lse = lse.mutable_data_ptr<float>();
  const Kernels& kernels = kernels_for(resolve_isa(std::string(isa_name)), Mode::bf16);
  run_tasks(kernels, rows * key_heads, kernels.attend_row_workspace(a), [&](int64_t i, void* workspace) {
    kernels.attend_row(a, i / key_heads, i % key_heads, workspace);
  });
  return {out, lse};
}

} // namespace

TORCH_LIBRARY_IMPL(fastreader, CPU, m) { m.impl("decode_attention", &decode_attention); }

} // namespace fastreader
