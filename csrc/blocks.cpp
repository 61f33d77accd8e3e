// fastreader::blocks_pack, blocks_unpack and blocks_rows: rows of a GGUF file in the layout of the kernels, and back.
//
// A packed weight begins with 64 bytes: the number of runs of strips as int64, then the format of each as int8, then at
// byte 16 the number of strips of each but the last as 6 int64. So joined weights need no other description.

#include "blocks.h"

#include <ATen/Parallel.h>
#include <torch/library.h>

#include <atomic>
#include <cstring>

#include "block_packing.h"
#include "parallel.h"

namespace fastreader {
namespace {

constexpr int64_t kHead = 64, kFormatsAt = 8, kStripsAt = 16;
constexpr const char* kNames[kBlockFormats] = {"Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K",
                                               "Q5_K", "Q6_K", "Q3_K", "IQ4_NL", "IQ4_XS", "MXFP4"};
constexpr int64_t kMostSize = int64_t{1} << 29;

const BlockShape& shape_of(BlockFormat format) { return kBlockShapes[static_cast<int>(format)]; }

BlockFormat format_of(c10::string_view name) {
  for (int i = 0; i < kBlockFormats; ++i) {
    if (name == kNames[i]) return static_cast<BlockFormat>(i);
  }
  TORCH_CHECK(false, "blocks: unknown format ", std::string(name));
}

int64_t strips_of(int64_t rows) { return (rows + kStrip - 1) / kStrip; }

at::Tensor blocks_pack(const at::Tensor& rows_in, c10::string_view format_name, int64_t size) {
  const BlockFormat format = format_of(format_name);
  const int64_t each = block_size(format), block_bytes = file_bytes(format);
  TORCH_CHECK(rows_in.dim() == 2 && rows_in.scalar_type() == at::kByte && rows_in.size(0) > 0 && size > 0 &&
                  size <= kMostSize && rows_in.size(0) <= kMostSize && size % each == 0 &&
                  rows_in.size(1) == size / each * block_bytes,
              "blocks_pack: expected uint8 rows of ", size, " values in blocks of ", each, " (", block_bytes,
              " bytes), got ", rows_in.sizes(), " ", rows_in.scalar_type());
  const at::Tensor rows = rows_in.contiguous();
  const int64_t strips = strips_of(rows.size(0)), bytes = strip_bytes(shape_of(format), size);
  const at::Tensor packed = at::empty({kHead + strips * bytes}, rows.options());
  uint8_t* const out = packed.mutable_data_ptr<uint8_t>();
  std::memset(out, 0, kHead);
  out[0] = 1;
  out[kFormatsAt] = static_cast<uint8_t>(format);
  const uint8_t* const from = rows.const_data_ptr<uint8_t>();
  std::atomic<bool> sound{true};
  at::parallel_for(0, strips, 1, [&](int64_t begin, int64_t end) {
    for (int64_t strip = begin; strip < end; ++strip) {
      const int64_t first = strip * kStrip, count = std::min(kStrip, rows.size(0) - first);
      if (!pack_block_strip(format, from + first * rows.size(1), rows.size(1), count, size, out + kHead + strip * bytes)) {
        sound = false;
      }
    }
  });
  TORCH_CHECK(sound, "blocks_pack: a scale is not finite");
  return packed;
}

// Join weights of the same number of columns, each a whole number of strips but the last.
at::Tensor blocks_join(at::TensorList parts, at::IntArrayRef widths, int64_t size) {
  TORCH_CHECK(!parts.empty() && parts.size() == widths.size(), "blocks_join: expected a width for each part");
  uint8_t head[kHead] = {};
  int64_t bytes = kHead, runs = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    const Blocks blocks = blocks_of(parts[i], widths[i], size);
    TORCH_CHECK(i + 1 == parts.size() || widths[i] % kStrip == 0, "blocks_join: width ", widths[i],
                " is not a multiple of ", kStrip);
    TORCH_CHECK(runs + blocks.count <= Blocks::kMostRuns, "blocks_join: more than ", Blocks::kMostRuns, " parts");
    for (int64_t run = 0; run < blocks.count; ++run, ++runs) {
      head[kFormatsAt + runs] = static_cast<uint8_t>(blocks.runs[run].format);
      if (runs < Blocks::kMostRuns - 1) std::memcpy(head + kStripsAt + 8 * runs, &blocks.runs[run].strips, 8);
    }
    bytes += parts[i].numel() - kHead;
  }
  std::memset(head + kStripsAt + 8 * (runs - 1), 0, kHead - kStripsAt - 8 * (runs - 1)); // the last run has the rest
  std::memcpy(head, &runs, 8);
  const at::Tensor joined = at::empty({bytes}, parts[0].options());
  uint8_t* out = joined.mutable_data_ptr<uint8_t>();
  std::memcpy(out, head, kHead);
  out += kHead;
  for (const at::Tensor& part : parts) {
    const uint8_t* const from = part.const_data_ptr<uint8_t>() + kHead;
    at::parallel_for(0, part.numel() - kHead, int64_t{1} << 20, [&](int64_t begin, int64_t end) {
      std::memcpy(out + begin, from + begin, end - begin); // the memory is new, and clearing it takes longer than this
    });
    out += part.numel() - kHead;
  }
  return joined;
}

const Kernels& float_kernels() { return kernels_for(best_isa(), Mode::f32); }

// Return rows first to first + count as float32 [count, size].
at::Tensor blocks_unpack(const at::Tensor& packed, int64_t width, int64_t size, int64_t first, int64_t count) {
  const Blocks blocks = blocks_of(packed, width, size);
  TORCH_CHECK(0 <= first && 0 <= count && first <= width && count <= width - first, "blocks_unpack: expected rows within ",
              width, ", got ", first, " and ", count);
  const Kernels& kernels = float_kernels();
  const at::Tensor out = at::empty({count, size}, packed.options().dtype(at::kFloat));
  float* const to = out.mutable_data_ptr<float>();
  at::parallel_for(first / kStrip, strips_of(first + count), 1, [&](int64_t begin, int64_t end) {
    alignas(64) float rows[kRecord * kStrip];
    for (int64_t strip = begin; strip < end; ++strip) {
      const int64_t low = std::max(first, strip * kStrip), high = std::min(first + count, (strip + 1) * kStrip);
      for (int64_t k = 0; k < size; k += kRecord) {
        if (high - low == kStrip) {
          kernels.unpack_block(blocks, strip, k, to + (low - first) * size + k, size);
          continue;
        }
        kernels.unpack_block(blocks, strip, k, rows, kRecord);
        for (int64_t row = low; row < high; ++row) {
          std::memcpy(to + (row - first) * size + k, rows + row % kStrip * kRecord, kRecord * sizeof(float));
        }
      }
    }
  });
  return out;
}

// Return rows `ids` as float32 [n, size].
at::Tensor blocks_rows(const at::Tensor& packed, int64_t width, int64_t size, const at::Tensor& ids_in) {
  const Blocks blocks = blocks_of(packed, width, size);
  TORCH_CHECK(ids_in.dim() == 1 && ids_in.scalar_type() == at::kLong, "blocks_rows: expected int64 ids [n]");
  const at::Tensor ids = ids_in.contiguous();
  const int64_t* const id = ids.const_data_ptr<int64_t>();
  for (int64_t i = 0; i < ids.numel(); ++i) {
    TORCH_CHECK_INDEX(0 <= id[i] && id[i] < width, "blocks_rows: expected ids from 0 to ", width - 1, ", got ", id[i]);
  }
  const Kernels& kernels = float_kernels();
  const at::Tensor out = at::empty({ids.numel(), size}, packed.options().dtype(at::kFloat));
  float* const to = out.mutable_data_ptr<float>();
  at::parallel_for(0, ids.numel(), 64, [&](int64_t begin, int64_t end) {
    alignas(64) float rows[kRecord * kStrip];
    for (int64_t i = begin; i < end; ++i) {
      for (int64_t k = 0; k < size; k += kRecord) {
        kernels.unpack_block(blocks, id[i] / kStrip, k, rows, kRecord);
        std::memcpy(to + i * size + k, rows + id[i] % kStrip * kRecord, kRecord * sizeof(float));
      }
    }
  });
  return out;
}

} // namespace

Blocks blocks_of(const at::Tensor& packed, int64_t width, int64_t size) {
  TORCH_CHECK(packed.is_contiguous() && packed.scalar_type() == at::kByte && packed.numel() > kHead && width > 0 &&
                  width <= kMostSize && size > 0 && size <= kMostSize && size % kRecord == 0,
              "blocks: expected a packed weight [", width, ", ", size, "]");
  const uint8_t* const head = packed.const_data_ptr<uint8_t>();
  Blocks blocks{};
  std::memcpy(&blocks.count, head, 8);
  TORCH_CHECK(0 < blocks.count && blocks.count <= Blocks::kMostRuns, "blocks: not a packed weight");
  int64_t left = strips_of(width), bytes = kHead;
  for (int64_t i = 0; i < blocks.count; ++i) {
    const uint8_t format = head[kFormatsAt + i];
    TORCH_CHECK(format < kBlockFormats, "blocks: unknown format ", int{format});
    BlockRun& run = blocks.runs[i];
    run.format = static_cast<BlockFormat>(format);
    run.strips = left;
    if (i + 1 < blocks.count) std::memcpy(&run.strips, head + kStripsAt + 8 * i, 8);
    TORCH_CHECK(0 < run.strips && run.strips <= left && size % block_size(run.format) == 0,
                "blocks: this weight was packed for another size");
    left -= run.strips;
    run.strip_bytes = strip_bytes(shape_of(run.format), size);
    run.data = reinterpret_cast<const char*>(head) + bytes;
    bytes += run.strips * run.strip_bytes;
  }
  TORCH_CHECK(left == 0 && bytes == packed.numel(), "blocks: this weight was packed for another size");
  return blocks;
}

TORCH_LIBRARY_IMPL(fastreader, CPU, m) {
  m.impl("blocks_pack", &blocks_pack);
  m.impl("blocks_join", &blocks_join);
  m.impl("blocks_unpack", &blocks_unpack);
  m.impl("blocks_rows", &blocks_rows);
}

} // namespace fastreader
