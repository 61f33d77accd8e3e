// fastreader::blocks_pack, blocks_unpack and blocks_rows: rows of a GGUF file in the layout of the kernels, and back.
//
// A packed weight begins with 64 bytes: the number of runs of strips as int64, then the format of each as int8, then at
// byte 16 the number of strips of each but the last as 6 int64. So joined weights need no other description.

#include "blocks.h"

#include <ATen/Parallel.h>
#include <torch/library.h>

#include <atomic>
#include <bit>
#include <cstring>

#include "block_layout.h"
#include "parallel.h"

namespace fastreader {
namespace {

constexpr int64_t kHead = 64, kFormatsAt = 8, kStripsAt = 16;
constexpr const char* kNames[kBlockFormats] = {"Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K"};
constexpr int64_t kFileBytes[kBlockFormats] = {18, 20, 22, 24, 34, 144, 176, 210}; // of a block
constexpr int64_t kMostSize = int64_t{1} << 29;

const BlockShape& shape_of(BlockFormat format) { return kBlockShapes[static_cast<int>(format)]; }

int64_t block_size(BlockFormat format) { return shape_of(format).supers > 0 ? kRecord * kSuper : kRecord; }

BlockFormat format_of(c10::string_view name) {
  for (int i = 0; i < kBlockFormats; ++i) {
    if (name == kNames[i]) return static_cast<BlockFormat>(i);
  }
  TORCH_CHECK(false, "blocks: unknown format ", std::string(name));
}

// The parts of one block of a file: 32 or 256 integers, and what scales them.
struct FileBlock {
  uint8_t values[256]; // without `base` subtracted
  uint16_t halves[2];
  uint8_t smalls[2][kSuper]; // for each record
};

template <typename T>
T load(const uint8_t* p) {
  T value;
  std::memcpy(&value, p, sizeof value);
  return value;
}

// Read the 12 bytes that hold 8 scales and 8 offsets of 6 bits.
void read_six_bits(const uint8_t* from, FileBlock& out) {
  for (int j = 0; j < 8; ++j) {
    if (j < 4) {
      out.smalls[0][j] = from[j] & 63;
      out.smalls[1][j] = from[j + 4] & 63;
    } else {
      out.smalls[0][j] = (from[j + 4] & 15) | (from[j - 4] >> 6) << 4;
      out.smalls[1][j] = (from[j + 4] >> 4) | (from[j] >> 6) << 4;
    }
  }
}

// The layouts are those of ggml (ggml-quants.h, block_q4_0 and so on).
void read_block(BlockFormat format, const uint8_t* p, FileBlock& out) {
  switch (format) {
    case BlockFormat::q4_0:
    case BlockFormat::q4_1:
    case BlockFormat::q5_0:
    case BlockFormat::q5_1: {
      const BlockShape& shape = shape_of(format);
      for (int i = 0; i < shape.halves; ++i, p += 2) out.halves[i] = load<uint16_t>(p);
      uint32_t high = 0;
      if (shape.high > 0) {
        high = load<uint32_t>(p);
        p += 4;
      }
      for (int i = 0; i < 16; ++i) {
        out.values[i] = p[i] & 15;
        out.values[i + 16] = p[i] >> 4;
      }
      if (high != 0) {
        for (int i = 0; i < 32; ++i) out.values[i] |= (high >> i & 1) << 4;
      }
      return;
    }
    case BlockFormat::q8_0:
      out.halves[0] = load<uint16_t>(p);
      std::memcpy(out.values, p + 2, 32);
      return;
    case BlockFormat::q4_k:
    case BlockFormat::q5_k: {
      out.halves[0] = load<uint16_t>(p);
      out.halves[1] = load<uint16_t>(p + 2);
      read_six_bits(p + 4, out);
      const bool fifth = format == BlockFormat::q5_k;
      const uint8_t *high = p + 16, *low = p + (fifth ? 48 : 16);
      for (int group = 0; group < 4; ++group) {
        uint8_t* to = out.values + 64 * group;
        for (int i = 0; i < 32; ++i) {
          to[i] = low[32 * group + i] & 15;
          to[32 + i] = low[32 * group + i] >> 4;
        }
        if (!fifth) continue;
        for (int i = 0; i < 32; ++i) {
          to[i] |= (high[i] >> (2 * group) & 1) << 4;
          to[32 + i] |= (high[i] >> (2 * group + 1) & 1) << 4;
        }
      }
      return;
    }
    case BlockFormat::q6_k: {
      const uint8_t *low = p, *high = p + 128, *scales = p + 192;
      out.halves[0] = load<uint16_t>(p + 208);
      for (int record = 0; record < 8; ++record) {
        out.smalls[0][record] = scales[2 * record];
        out.smalls[1][record] = scales[2 * record + 1];
      }
      for (int half = 0; half < 2; ++half) {
        uint8_t* to = out.values + 128 * half;
        for (int i = 0; i < 32; ++i) {
          const uint8_t top = high[32 * half + i], first = low[64 * half + i], second = low[64 * half + 32 + i];
          to[i] = (first & 15) | (top & 3) << 4;
          to[32 + i] = (second & 15) | (top >> 2 & 3) << 4;
          to[64 + i] = first >> 4 | (top >> 4 & 3) << 4;
          to[96 + i] = second >> 4 | (top >> 6 & 3) << 4;
        }
      }
      return;
    }
  }
}

// Return `bits` of each of 8 bytes, from bit `shift` on, next to each other: of bytes 0, 2, 4, 6 in the low half of the
// result, of bytes 1, 3, 5, 7 in its high half. A product moves all four at once: no two of its terms share a bit.
template <int bits>
uint32_t gather(uint64_t bytes, int shift) {
  static_assert(bits <= 4 && std::endian::native == std::endian::little);
  constexpr uint64_t kLanes = 0x0001000100010001 * ((1 << bits) - 1);
  constexpr uint64_t kMoves = uint64_t{1} << 48 | uint64_t{1} << (32 + bits) | uint64_t{1} << (16 + 2 * bits) |
                              uint64_t{1} << (3 * bits);
  constexpr uint32_t kAll = (1 << 4 * bits) - 1;
  const auto one = [&](int from) {
    return static_cast<uint32_t>((bytes >> (from + shift) & kLanes) * kMoves >> 48) & kAll;
  };
  return one(0) | one(8) << 16;
}

// Write 32 integers of one row into a record.
void write_values(const BlockShape& shape, const uint8_t* values, int64_t row, uint8_t* record) {
  const auto put = [&](int64_t at, int64_t word, uint32_t bits) {
    std::memcpy(record + at + (word * kStrip + row) * 4, &bits, 4);
  };
  uint32_t high[2] = {};
  for (int group = 0; group < 4; ++group) { // of 8 columns
    const uint64_t bytes = load<uint64_t>(values + 8 * group);
    if (shape.low == 8) {
      for (int half = 0; half < 2; ++half) { // the middle bytes change places
        const uint32_t four = static_cast<uint32_t>(bytes >> 32 * half);
        put(0, 2 * group + half, (four & 0xff0000ff) | (four >> 8 & 0xff00) | (four & 0xff00) << 8);
      }
    } else {
      put(0, group, gather<4>(bytes, 0));
    }
    if (shape.high == 1) high[0] |= gather<1>(bytes, 4) << 4 * group;
    if (shape.high == 2) high[group / 2] |= gather<2>(bytes, 4) << group % 2 * 8;
  }
  for (int word = 0; word < shape.high; ++word) put(low_bytes(shape), word, high[word]);
}

bool finite(uint16_t half) { return (half & 0x7c00) != 0x7c00; }

// Pack the rows of one strip; return whether all scales are finite.
bool pack_strip(BlockFormat format, const uint8_t* rows, int64_t row_bytes, int64_t count, int64_t size, uint8_t* out) {
  const BlockShape& shape = shape_of(format);
  const int64_t each = block_size(format), records = record_bytes(shape);
  uint8_t* const first = out + size / (kRecord * kSuper) * super_bytes(shape);
  bool sound = true;
  if (count < kStrip) std::memset(out, 0, strip_bytes(shape, size));
  FileBlock block;
  for (int64_t column = 0; column < size; column += each) { // of all rows, so that a record is written once
    const uint8_t* from = rows + column / each * kFileBytes[static_cast<int>(format)];
    for (int64_t row = 0; row < count; ++row, from += row_bytes) {
      read_block(format, from, block);
      for (int i = 0; i < shape.supers; ++i) {
        sound = sound && finite(block.halves[i]);
        std::memcpy(out + column / each * super_bytes(shape) + 64 * i + 2 * row, &block.halves[i], 2);
      }
      for (int64_t k = 0; k < each; k += kRecord) {
        uint8_t* record = first + (column + k) / kRecord * records;
        write_values(shape, block.values + k, row, record);
        uint8_t* rest = record + low_bytes(shape) + high_bytes(shape);
        for (int i = 0; i < shape.halves; ++i) {
          sound = sound && finite(block.halves[i]);
          std::memcpy(rest + 64 * i + 2 * row, &block.halves[i], 2);
        }
        rest += 64 * shape.halves;
        for (int i = 0; i < shape.smalls; ++i) rest[32 * i + row] = block.smalls[i][k / kRecord];
      }
    }
  }
  return sound;
}

int64_t strips_of(int64_t rows) { return (rows + kStrip - 1) / kStrip; }

at::Tensor blocks_pack(const at::Tensor& rows_in, c10::string_view format_name, int64_t size) {
  const BlockFormat format = format_of(format_name);
  const int64_t each = block_size(format), file_bytes = kFileBytes[static_cast<int>(format)];
  TORCH_CHECK(rows_in.dim() == 2 && rows_in.scalar_type() == at::kByte && rows_in.size(0) > 0 && size > 0 &&
                  size <= kMostSize && rows_in.size(0) <= kMostSize && size % each == 0 &&
                  rows_in.size(1) == size / each * file_bytes,
              "blocks_pack: expected uint8 rows of ", size, " values in blocks of ", each, " (", file_bytes,
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
      if (!pack_strip(format, from + first * rows.size(1), rows.size(1), count, size, out + kHead + strip * bytes)) {
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
    std::memcpy(out, part.const_data_ptr<uint8_t>() + kHead, part.numel() - kHead);
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
    alignas(64) float columns[kRecord * kStrip];
    for (int64_t strip = begin; strip < end; ++strip) {
      const int64_t low = std::max(first, strip * kStrip), high = std::min(first + count, (strip + 1) * kStrip);
      for (int64_t k = 0; k < size; k += kRecord) {
        kernels.unpack_block(blocks, size, strip, k, columns);
        for (int64_t row = low; row < high; ++row) {
          for (int64_t c = 0; c < kRecord; ++c) to[(row - first) * size + k + c] = columns[c * kStrip + row % kStrip];
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
    alignas(64) float columns[kRecord * kStrip];
    for (int64_t i = begin; i < end; ++i) {
      for (int64_t k = 0; k < size; k += kRecord) {
        kernels.unpack_block(blocks, size, id[i] / kStrip, k, columns);
        for (int64_t c = 0; c < kRecord; ++c) to[i * size + k + c] = columns[c * kStrip + id[i] % kStrip];
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
