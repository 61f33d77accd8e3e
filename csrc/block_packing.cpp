// Blocks of a GGUF file in the layout of the kernels. Without torch, so that the kernels can be tested without it.

#include "block_packing.h"

#include <bit>
#include <cstring>

namespace fastreader {
namespace {

const BlockShape& shape_of(BlockFormat format) { return kBlockShapes[static_cast<int>(format)]; }

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

} // namespace

bool pack_block_strip(BlockFormat format, const uint8_t* rows, int64_t row_bytes, int64_t count, int64_t size,
                      uint8_t* out) {
  const BlockShape& shape = shape_of(format);
  const int64_t each = block_size(format), records = record_bytes(shape);
  uint8_t* const first = out + size / (kRecord * kSuper) * super_bytes(shape);
  bool sound = true;
  if (count < kStrip) std::memset(out, 0, strip_bytes(shape, size));
  FileBlock block;
  for (int64_t column = 0; column < size; column += each) { // of all rows, so that a record is written once
    const uint8_t* from = rows + column / each * file_bytes(format);
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

} // namespace fastreader
