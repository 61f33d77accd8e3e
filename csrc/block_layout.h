// Where the parts of a weight of blocks lie in memory, for any instruction set.
//
// Each strip of 32 rows holds its columns in records of 32, so that a product reads it once, in order. A record holds,
// for 32 rows side by side: the low bits of the integers, their high bits, halves (scale, and offset if there is one), and
// small integers that scale a half before the record, which 8 of them share. Low bits come as int32 per row with 2
// columns side by side in its halves: bits 4t.. of word g are columns 8g + 2t and 8g + 2t + 1. So every other four bits of a
// word are four columns in its bytes, and eight bits or the high bits of these are in the same bytes: in word j or from bit
// j or 2j on for the j-th four.
#pragma once

#include <cstdint>

#include "kernels.h"

namespace fastreader {

struct BlockShape {
  int low; // bits of an integer in the first part: 4, or 8 with a sign
  int high; // bits above them: 0, 1 or 2
  int base; // subtracted from the integer
  int halves; // of a record: a scale, or a scale and an offset
  int smalls; // of a record: small integers
  int supers; // halves of 8 records: a scale, or a scale and one of the offsets
  const int8_t* table = nullptr; // of the integers that 16 codes stand for
  bool bf16 = false; // whether a half is bfloat16
};

constexpr int8_t kCurve[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
constexpr int8_t kTinyFloats[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12}; // doubled

constexpr BlockShape kBlockShapes[kBlockFormats] = {
    {4, 0, 8, 1, 0, 0}, // q4_0
    {4, 0, 0, 2, 0, 0}, // q4_1
    {4, 1, 16, 1, 0, 0}, // q5_0
    {4, 1, 0, 2, 0, 0}, // q5_1
    {8, 0, 0, 1, 0, 0}, // q8_0
    {4, 0, 0, 0, 2, 2}, // q4_k
    {4, 1, 0, 0, 2, 2}, // q5_k
    {4, 2, 32, 0, 2, 1}, // q6_k: the small integers scale 16 columns each
    {4, 0, 4, 0, 2, 1}, // q3_k, whose integers have 3 bits in the file
    {4, 0, 0, 1, 0, 0, kCurve}, // iq4_nl
    {4, 0, 0, 0, 2, 1, kCurve}, // iq4_xs: both small integers are the scale of 32 columns
    {4, 0, 0, 1, 0, 0, kTinyFloats, true}, // mxfp4, whose scale is a power of two
};

constexpr int64_t kRecord = 32; // columns of a record
constexpr int64_t kSuper = 8; // records that share a half

constexpr int64_t low_bytes(const BlockShape& s) { return 128 * s.low; }
constexpr int64_t high_bytes(const BlockShape& s) { return 128 * s.high; }
constexpr int64_t record_bytes(const BlockShape& s) {
  return low_bytes(s) + high_bytes(s) + 64 * s.halves + 32 * s.smalls;
}
constexpr int64_t super_bytes(const BlockShape& s) { return 64 * s.supers; }
// Where a strip has the record of a column, and the halves that it shares with 7 others.
constexpr int64_t record_at(const BlockShape& s, int64_t column) {
  return column / kRecord * record_bytes(s) + (column / (kRecord * kSuper) + 1) * super_bytes(s);
}
constexpr int64_t super_at(const BlockShape& s, int64_t column) {
  return column / (kRecord * kSuper) * (kSuper * record_bytes(s) + super_bytes(s));
}
constexpr int64_t strip_bytes(const BlockShape& s, int64_t padded_size) {
  return padded_size / kRecord * record_bytes(s) + padded_size / (kRecord * kSuper) * super_bytes(s);
}

} // namespace fastreader
