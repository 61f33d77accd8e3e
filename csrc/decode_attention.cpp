// fastreader::decode_attention on the CPU: (row, key head) tasks over keys that are not copied.

#include "decode_attention.h"

#include <torch/library.h>

namespace fastreader {
namespace {

const int32_t* indices(const at::Tensor& tensor, int64_t length, const char* name) {
  TORCH_CHECK(tensor.scalar_type() == at::kInt && tensor.dim() == 1 && tensor.is_contiguous() &&
                  tensor.size(0) == length,
              "decode_attention: ", name, " must be contiguous int32 [", length, "], got ", tensor.scalar_type(), " ",
              tensor.sizes());
  return tensor.const_data_ptr<int32_t>();
}

bool fits(const at::Tensor& t) {
  return t.dim() == 3 && (t.scalar_type() == at::kFloat || t.scalar_type() == at::kBFloat16);
}

} // namespace

KeyRanges::KeyRanges(const at::Tensor& row_ptr, const at::Tensor& part, const at::Tensor& start, const at::Tensor& stop)
    : tensors{row_ptr, part, start, stop} {
  TORCH_CHECK(row_ptr.dim() == 1 && row_ptr.numel() > 0, "decode_attention: row_ptr must be [B + 1]");
  rows = row_ptr.numel() - 1;
  count = start.numel();
  this->row_ptr = indices(row_ptr, rows + 1, "row_ptr");
  this->part = indices(part, count, "part");
  this->start = indices(start, count, "start");
  this->stop = indices(stop, count, "stop");
  TORCH_CHECK(this->row_ptr[0] == 0 && this->row_ptr[rows] == count, "decode_attention: row_ptr does not fit the ranges");
  for (int64_t b = 0; b < rows; ++b) {
    TORCH_CHECK(this->row_ptr[b] <= this->row_ptr[b + 1], "decode_attention: row_ptr descends at row ", b);
  }
}

void KeyRanges::check(at::TensorList keys) const {
  for (int64_t r = 0; r < count; ++r) {
    TORCH_CHECK(0 <= part[r] && part[r] < static_cast<int64_t>(keys.size()), "decode_attention: range ", r,
                " is of part ", part[r]);
    TORCH_CHECK(0 <= start[r] && stop[r] <= keys[part[r]].size(0), "decode_attention: range ", r,
                " reaches past its keys");
  }
}

RowAttention::RowAttention(const at::Tensor& query_in, at::TensorList keys_in, at::TensorList values_in,
                           const KeyRanges& ranges, double scale, std::optional<double> softcap,
                           const HeadTerms& terms) {
  TORCH_CHECK(fits(query_in), "decode_attention: query must be float32 or bfloat16 [B, Hq, D], got ", query_in.sizes());
  TORCH_CHECK(keys_in.size() == values_in.size() && !keys_in.empty(), "decode_attention: expected as many keys as ",
              "values, got ", keys_in.size(), " and ", values_in.size());
  query_ = with_contiguous_rows(query_in);
  for (size_t i = 0; i < keys_in.size(); ++i) {
    const at::Tensor &key = keys_in[i], &value = values_in[i];
    TORCH_CHECK(fits(key) && fits(value) && key.scalar_type() == value.scalar_type() &&
                    key.scalar_type() == keys_in[0].scalar_type() && key.size(0) == value.size(0) &&
                    key.size(1) == value.size(1) && key.size(2) == query_.size(2) &&
                    key.size(1) == keys_in[0].size(1) && value.size(2) == values_in[0].size(2),
                "decode_attention: keys ", key.sizes(), " and values ", value.sizes(), " of part ", i, " do not fit");
    keys_.push_back(with_contiguous_rows(key));
    values_.push_back(with_contiguous_rows(value));
    key_sources_.push_back(source_of(keys_.back(), 1));
    value_sources_.push_back(source_of(values_.back(), 1));
  }
  rows = query_.size(0);
  key_heads = keys_[0].size(1);
  args.query = source_of(query_, 1);
  args.keys = key_sources_.data();
  args.values = value_sources_.data();
  args.heads = query_.size(1);
  args.size = query_.size(2);
  args.value_size = values_[0].size(2);
  TORCH_CHECK(key_heads > 0 ? args.heads % key_heads == 0 : args.heads == 0, "decode_attention: ", args.heads,
              " query heads over ", key_heads, " key heads");
  TORCH_CHECK(args.size <= kMaxHeadSize && args.value_size <= kMaxHeadSize, "decode_attention: head sizes above ",
              kMaxHeadSize);
  TORCH_CHECK(ranges.rows == rows, "decode_attention: ranges of ", ranges.rows, " rows for ", rows, " queries");
  ranges.check(keys_);
  args.groups = key_heads > 0 ? args.heads / key_heads : 0;
  args.padded_size = round_up(args.size, kStrip);
  args.padded_value_size = round_up(args.value_size, kStrip);
  args.row_ptr = ranges.row_ptr;
  args.part = ranges.part;
  args.start = ranges.start;
  args.stop = ranges.stop;
  args.scale = static_cast<float>(scale);
  args.softcap = static_cast<float>(softcap.value_or(0));
  args.sinks = head_values(terms.sinks, args.heads, "decode_attention: sinks");
  args.slopes = head_values(terms.slopes, args.heads, "decode_attention: slopes");
  if (terms.slopes.has_value()) {
    TORCH_CHECK(terms.offset.has_value(), "decode_attention: slopes need the offsets of the ranges");
    args.offset = indices(*terms.offset, ranges.count, "offset");
  }
}

namespace {

std::tuple<at::Tensor, at::Tensor> decode_attention(const at::Tensor& query, at::TensorList keys, at::TensorList values,
                                                 const at::Tensor& row_ptr, const at::Tensor& part,
                                                 const at::Tensor& start, const at::Tensor& stop,
                                                 const std::optional<at::Tensor>& offset, double scale,
                                                 std::optional<double> softcap, const std::optional<at::Tensor>& sinks,
                                                 const std::optional<at::Tensor>& slopes, c10::string_view isa_name) {
  const KeyRanges ranges(row_ptr, part, start, stop);
  const HeadTerms terms{sinks, slopes, offset};
  RowAttention attention(query, keys, values, ranges, scale, softcap, terms);
  const DecodeAttentionArgs& a = attention.args;
  const auto type = query.options().dtype(at::kFloat);
  const at::Tensor out = at::empty({attention.rows, a.heads, a.value_size}, type);
  const at::Tensor lse = at::empty({attention.rows, a.heads}, type);
  if (lse.numel() == 0) return {out, lse};
  const Kernels& kernels = kernels_for(resolve_isa(std::string(isa_name)), Mode::bf16);
  attention.run(kernels, out.mutable_data_ptr<float>(), lse.mutable_data_ptr<float>(), [](int64_t, int64_t) {});
  return {out, lse};
}

} // namespace

TORCH_LIBRARY_IMPL(fastreader, CPU, m) { m.impl("decode_attention", &decode_attention); }

} // namespace fastreader
