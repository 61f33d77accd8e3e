// Blocks of a GGUF file in the layout of the kernels. Without torch, so that the kernels can be tested without it.

#include "block_packing.h"

#include <array>
#include <bit>
#include <cstring>
#include <utility>

namespace fastreader {
namespace {

template <typename T>
T load(const uint8_t* p) {
  T value;
  std::memcpy(&value, p, sizeof value);
  return value;
}

// What scales the integers of one block of a file.
struct Scales {
  uint16_t halves[2];
  uint8_t smalls[2][kSuper]; // for each record
};

// Read the 12 bytes that hold 8 scales and 8 offsets of 6 bits.
void read_six_bits(const uint8_t* from, Scales& out) {
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

// Read the 12 bytes that hold 16 scales of 6 bits, of which 32 is subtracted: 4 bits of each, then the other two.
void read_three_bit_scales(const uint8_t* from, Scales& out) {
  for (int i = 0; i < 16; ++i) {
    const int low = from[i % 8] >> 4 * (i / 8) & 15, high = from[8 + i % 4] >> 2 * (i / 4) & 3;
    out.smalls[i % 2][i / 2] = static_cast<uint8_t>((low | high << 4) - 32);
  }
}

// Read the 6 bytes that hold 8 scales of 6 bits, of which 32 is subtracted: two bits of each, then the other four.
void read_coded_scales(const uint8_t* from, Scales& out) {
  const int high = load<uint16_t>(from);
  for (int i = 0; i < kSuper; ++i) {
    const int low = from[2 + i / 2] >> 4 * (i % 2) & 15;
    out.smalls[0][i] = out.smalls[1][i] = static_cast<uint8_t>((low | (high >> 2 * i & 3) << 4) - 32);
  }
}

// Return half the power of two that an exponent of 8 bits stands for, as bfloat16.
uint16_t half_power(uint8_t exponent) {
  return static_cast<uint16_t>(exponent < 2 ? 0x20 << exponent : (exponent - 1) << 7);
}

// Read the scales of a block. The layouts are those of ggml (ggml-quants.h, block_q4_0 and so on).
template <BlockFormat FORMAT>
void read_scales(const uint8_t* p, Scales& out) {
  constexpr const BlockShape& shape = kBlockShapes[static_cast<int>(FORMAT)];
  if constexpr (FORMAT == BlockFormat::mxfp4) {
    out.halves[0] = half_power(p[0]);
  } else if constexpr (FORMAT == BlockFormat::q6_k) {
    out.halves[0] = load<uint16_t>(p + 208);
    for (int record = 0; record < kSuper; ++record) {
      out.smalls[0][record] = p[192 + 2 * record];
      out.smalls[1][record] = p[193 + 2 * record];
    }
  } else if constexpr (FORMAT == BlockFormat::q3_k) {
    out.halves[0] = load<uint16_t>(p + 108);
    read_three_bit_scales(p + 96, out);
  } else {
    for (int i = 0; i < shape.halves + shape.supers; ++i) out.halves[i] = load<uint16_t>(p + 2 * i);
    if constexpr (FORMAT == BlockFormat::iq4_xs) {
      read_coded_scales(p + 2, out);
    } else if constexpr (shape.smalls > 0) {
      read_six_bits(p + 4, out);
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

// Return the even bits in the low half and the odd ones in the high half.
uint32_t split_bits(uint32_t bits) {
  const auto swap = [&](int distance, uint32_t mask) {
    const uint32_t moved = (bits ^ bits >> distance) & mask;
    bits ^= moved ^ moved << distance;
  };
  swap(1, 0x22222222);
  swap(2, 0x0c0c0c0c);
  swap(4, 0x00f000f0);
  swap(8, 0x0000ff00);
  return bits;
}

// Of four groups of `bits` in each half, move the last two to its upper byte.
template <int bits>
uint32_t by_bytes(uint32_t groups) {
  constexpr uint32_t kFirst = 0x00010001 * ((1 << 2 * bits) - 1);
  return (groups & kFirst) | (groups & kFirst << 2 * bits) << (8 - 2 * bits);
}

// Write the integers of a block's record into that of its row, straight from the bytes that hold them.
template <BlockFormat FORMAT>
void write_values(const uint8_t* block, int record_index, int64_t row, uint8_t* record) {
  constexpr const BlockShape& shape = kBlockShapes[static_cast<int>(FORMAT)];
  const auto put = [&](int64_t at, int64_t word, uint32_t bits) {
    std::memcpy(record + at + (word * kStrip + row) * 4, &bits, 4);
  };
  uint32_t high[2] = {};
  for (int group = 0; group < 4; ++group) { // of 8 columns
    if constexpr (FORMAT == BlockFormat::q8_0) {
      const uint64_t bytes = load<uint64_t>(block + 2 + 8 * group);
      for (int odd = 0; odd < 2; ++odd) {
        const auto first = static_cast<uint32_t>(bytes >> 16 * odd), last = static_cast<uint32_t>(bytes >> (32 + 16 * odd));
        put(0, 2 * group + odd, (first & 0xff) | (last & 0xff) << 8 | (first & 0xff00) << 8 | (last & 0xff00) << 16);
      }
    } else if constexpr (block_size(FORMAT) == kRecord) { // the second half of the columns has the high bits of the bytes
      const uint8_t* const bytes = block + (FORMAT == BlockFormat::mxfp4 ? 1 : 2 * shape.halves + 4 * shape.high);
      put(0, group, gather<4>(load<uint64_t>(bytes + 8 * (group % 2)), 4 * (group / 2)));
    } else if constexpr (FORMAT == BlockFormat::iq4_xs) {
      put(0, group, gather<4>(load<uint64_t>(block + 8 + 16 * record_index + 8 * (group % 2)), 4 * (group / 2)));
    } else if constexpr (FORMAT == BlockFormat::q3_k) { // two bits, and the third in the first bytes of the block
      const uint64_t two = load<uint64_t>(block + 32 + 32 * (record_index / 4) + 8 * group) >> 2 * (record_index % 4);
      const uint64_t third = load<uint64_t>(block + 8 * group) >> record_index;
      put(0, group, gather<4>((two & 0x0303030303030303) | (third & 0x0101010101010101) << 2, 0));
    } else if constexpr (FORMAT == BlockFormat::q6_k) {
      const int half = record_index / 4, part = record_index % 4;
      const uint8_t *low = block + 64 * half + 32 * (part % 2), *top = block + 128 + 32 * half;
      put(0, group, gather<4>(load<uint64_t>(low + 8 * group), 4 * (part / 2)));
      high[group / 2] |= by_bytes<2>(gather<2>(load<uint64_t>(top + 8 * group), 2 * part)) << group % 2 * 4;
    } else {
      const uint8_t* const low = block + 16 + 32 * shape.high + 32 * (record_index / 2);
      put(0, group, gather<4>(load<uint64_t>(low + 8 * group), 4 * (record_index % 2)));
      if constexpr (shape.high == 1) {
        high[0] |= by_bytes<1>(gather<1>(load<uint64_t>(block + 16 + 8 * group), record_index)) << 2 * group;
      }
    }
  }
  if constexpr (shape.high == 1 && block_size(FORMAT) == kRecord) {
    const uint32_t bits = split_bits(load<uint32_t>(block + 2 * shape.halves));
    for (int group = 0; group < 4; ++group) high[0] |= by_bytes<1>(bits >> 4 * group & 0x000f000f) << 2 * group;
  }
  for (int word = 0; word < shape.high; ++word) put(low_bytes(shape), word, high[word]);
}

bool finite(uint16_t half) { return (half & 0x7c00) != 0x7c00; }

template <BlockFormat FORMAT>
bool pack_strip(const uint8_t* rows, int64_t row_bytes, int64_t count, int64_t size, uint8_t* out) {
  constexpr const BlockShape& shape = kBlockShapes[static_cast<int>(FORMAT)];
  constexpr int64_t each = block_size(FORMAT);
  bool sound = true;
  if (count < kStrip) std::memset(out, 0, strip_bytes(shape, size));
  Scales scales;
  for (int64_t column = 0; column < size; column += each) { // of all rows, so that a record is written once
    const uint8_t* from = rows + column / each * file_bytes(FORMAT);
    for (int64_t row = 0; row < count; ++row, from += row_bytes) {
      read_scales<FORMAT>(from, scales);
      for (int i = 0; i < shape.halves + shape.supers; ++i) sound = sound && (shape.bf16 || finite(scales.halves[i]));
      for (int i = 0; i < shape.supers; ++i) {
        std::memcpy(out + super_at(shape, column) + 64 * i + 2 * row, &scales.halves[i], 2);
      }
      for (int k = 0; k < each / kRecord; ++k) {
        uint8_t* const record = out + record_at(shape, column + k * kRecord);
        write_values<FORMAT>(from, k, row, record);
        uint8_t* rest = record + low_bytes(shape) + high_bytes(shape);
        for (int i = 0; i < shape.halves; ++i) std::memcpy(rest + 64 * i + 2 * row, &scales.halves[i], 2);
        rest += 64 * shape.halves;
        for (int i = 0; i < shape.smalls; ++i) rest[32 * i + row] = scales.smalls[i][k];
      }
    }
  }
  return sound;
}

} // namespace

bool pack_block_strip(BlockFormat format, const uint8_t* rows, int64_t row_bytes, int64_t count, int64_t size,
                      uint8_t* out) {
  constexpr auto all = []<int... FORMATS>(std::integer_sequence<int, FORMATS...>) {
    return std::array{&pack_strip<static_cast<BlockFormat>(FORMATS)>...};
  }(std::make_integer_sequence<int, kBlockFormats>{});
  return all[static_cast<int>(format)](rows, row_bytes, count, size, out);
}

} // namespace fastreader
