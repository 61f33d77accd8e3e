// Weights that keep the integers of their file: unpacked 32 columns of a strip at a time, just before they are
// multiplied. The values are those of the file's definition in float32, bit for bit.

typedef uint16_t v_u16 __attribute__((vector_size(FR_WIDTH * 2), aligned(2), may_alias));
typedef uint8_t v_u8 __attribute__((vector_size(FR_WIDTH), aligned(1), may_alias));
typedef int16_t v_i16 __attribute__((vector_size(FR_WIDTH * 4))); // two in each lane

// Return halves as floats; none of them is infinite, which packing makes sure of.
FR_INLINE vf widen_halves(const char* halves) {
#if FR_AVX512
  return (vf)_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(halves)));
#else
  const vi bits = __builtin_convertvector(*reinterpret_cast<const v_u16*>(halves), vi);
  const vi magnitude = (bits & fill(int32_t{0x7fff})) << 13, sign = (bits & fill(int32_t{0x8000})) << 16;
  const vi smallest = fill(int32_t{113 << 23});
  // Below the normal halves, subtracting the exponent's own value leaves the fraction.
  const vf small = (vf)(magnitude + smallest) - (vf)smallest;
  const vf normal = (vf)(magnitude + fill(int32_t{112 << 23}));
  return (vf)((vi)(magnitude < fill(int32_t{1 << 23}) ? small : normal) | sign);
#endif
}

FR_INLINE vi widen_bytes(const char* bytes) {
  return __builtin_convertvector(*reinterpret_cast<const v_u8*>(bytes), vi);
}

// Shift bit `bit` to bit 4.
FR_INLINE vi to_fourth(vi bits, int bit) { return bit < 4 ? bits << (4 - bit) : bits >> (bit - 4); }

// The record of 32 columns of a strip, from lane `lane` on.
template <BlockFormat FORMAT>
struct Record {
  static constexpr BlockShape kShape = kBlockShapes[static_cast<int>(FORMAT)];
  static constexpr bool kOffsets = kShape.halves == 2 || kShape.supers == 2;
  static constexpr bool kSmallScales = kShape.smalls > 0 && kShape.supers == 1; // within the integers
  static constexpr int64_t kHighAt = low_bytes(kShape), kHalvesAt = kHighAt + high_bytes(kShape);
  static constexpr int64_t kSmallsAt = kHalvesAt + 64 * kShape.halves;
  static constexpr int64_t kBytes = record_bytes(kShape), kSuperBytes = super_bytes(kShape);

  const char* record;
  const char* super;

  FR_MEMBER Record(const char* strip, int64_t padded_size, int64_t column) {
    const int64_t supers = padded_size / (kRecord * kSuper) * kSuperBytes;
    record = strip + supers + column / kRecord * kBytes;
    super = strip + column / (kRecord * kSuper) * kSuperBytes;
  }

  FR_MEMBER vi small(int which, int64_t lane) const {
    return widen_bytes(record + kSmallsAt + 32 * which + lane);
  }

  // Return the halves that 8 records share: what `scale` and `offset` are made from.
  FR_MEMBER vf shared(int which, int64_t lane) const {
    return which < kShape.supers ? widen_halves(super + 64 * which + 2 * lane) : vf{};
  }

  FR_MEMBER vf scale(int64_t lane, vf shared) const {
    if constexpr (kShape.halves > 0) return widen_halves(record + kHalvesAt + 2 * lane);
    if constexpr (kSmallScales) return shared;
    return shared * __builtin_convertvector(small(0, lane), vf);
  }
  FR_MEMBER vf scale(int64_t lane) const { return scale(lane, shared(0, lane)); }

  FR_MEMBER vf offset(int64_t lane, vf shared) const {
    if constexpr (kShape.halves == 2) return widen_halves(record + kHalvesAt + 64 + 2 * lane);
    if constexpr (kShape.supers == 2) return -(shared * __builtin_convertvector(small(1, lane), vf));
    return vf{};
  }
  FR_MEMBER vf offset(int64_t lane) const { return offset(lane, shared(1, lane)); }

  // Return the scales within the integers of columns 16 half to 16 half + 15.
  FR_MEMBER vi factor(int half, int64_t lane) const { return small(half, lane) << 24 >> 24; }

  // Call body(pair, integers) for the 16 pairs of columns: in each lane the integers of columns 2 pair and 2 pair + 1. RAW:
  // without `base` subtracted and `factor` multiplied.
  template <bool RAW = false, typename Body>
  FR_MEMBER void pairs(int64_t lane, const Body& body) const {
    const int32_t* low = reinterpret_cast<const int32_t*>(record) + lane;
    const int32_t* high = reinterpret_cast<const int32_t*>(record + kHighAt) + lane;
    vi both[2] = {};
    if constexpr (kSmallScales && !RAW) {
#pragma GCC unroll 2
      for (int half = 0; half < 2; ++half) {
        const vi wide = factor(half, lane);
        both[half] = wide << 16 | (wide & fill(int32_t{0xffff}));
      }
    }
    constexpr int kWords = kShape.low, kEach = 16 / kWords; // of the low bits, and pairs in each
#pragma GCC unroll 8
    for (int word = 0; word < kWords; ++word) {
      const vi bits = load(low + word * kStrip);
#pragma GCC unroll 4
      for (int t = 0; t < kEach; ++t) {
        const int pair = word * kEach + t;
        vi value;
        if constexpr (kShape.low == 8) {
          value = (vi)((v_i16)(t == 0 ? bits << 8 : bits) >> 8);
        } else {
          value = bits >> 4 * t & fill(int32_t{0x000f000f});
        }
        if constexpr (kShape.high == 1) {
          value |= to_fourth(load(high), pair) & fill(int32_t{0x00100010});
        } else if constexpr (kShape.high == 2) {
          value |= to_fourth(load(high + pair / 8 * kStrip), pair % 8 * 2) & fill(int32_t{0x00300030});
        }
        if constexpr (kShape.base > 0 && !RAW) value = (vi)((v_i16)value - (v_i16)fill(int32_t{kShape.base << 16 | kShape.base}));
        if constexpr (kSmallScales && !RAW) value = (vi)((v_i16)value * (v_i16)both[pair / 8]);
        body(pair, value);
      }
    }
  }
};

FR_INLINE void write(int32_t* p, vi x) { *reinterpret_cast<vi_u*>(p) = x; }

// Write 32 columns as floats [32][32].
template <BlockFormat FORMAT>
FR_INLINE void unpack_floats(const Record<FORMAT>& record, float* out) {
  for (int64_t lane = 0; lane < kStrip; lane += kWidth) {
    const vf scale = record.scale(lane), offset = record.offset(lane);
    record.pairs(lane, [&](int pair, vi value) __attribute__((always_inline)) {
      const vf even = __builtin_convertvector(value << 16 >> 16, vf), odd = __builtin_convertvector(value >> 16, vf);
      float* to = out + 2 * pair * kStrip + lane;
      store(to, even * scale + offset);
      store(to + kStrip, odd * scale + offset);
    });
  }
}

// The operand of a product: TERMS times float [columns][32] or bf16 pairs [columns / 2][32][2], or int16 pairs with a
// scale and an offset for every 32 columns, [columns / 32][32] each.
template <typename T>
struct UnpackedPart {
  T* values;
  int64_t term_stride;
  float *scales, *offsets;
};

template <BlockFormat FORMAT, typename T, int TERMS>
FR_INLINE void unpack_record(const Record<FORMAT>& record, const UnpackedPart<T>& out, int64_t column) {
  T* to = out.values + column * kStrip;
  if constexpr (std::is_same_v<T, float>) {
    unpack_floats(record, to);
  } else if constexpr (std::is_same_v<T, int16_t>) {
    for (int64_t lane = 0; lane < kStrip; lane += kWidth) {
      int32_t* pairs = reinterpret_cast<int32_t*>(to) + lane;
      record.pairs(lane, [&](int pair, vi value) __attribute__((always_inline)) { write(pairs + pair * kStrip, value); });
      store(out.scales + column + lane, record.scale(lane));
      store(out.offsets + column + lane, record.offset(lane));
    }
  } else {
    alignas(64) float values[kRecord * kStrip];
    alignas(64) T parts[2][2][kStrip]; // [term][even, odd]
    unpack_floats(record, values);
    for (int64_t pair = 0; pair < kRecord / 2; ++pair) {
      for (int odd = 0; odd < 2; ++odd) {
        load_row<T, TERMS>(values + (2 * pair + odd) * kStrip, false, kStrip, kStrip, parts[0][odd], 2 * kStrip);
      }
      for (int term = 0; term < TERMS; ++term) {
        uint32_t* joined = reinterpret_cast<uint32_t*>(to + term * out.term_stride) + pair * kStrip;
        for (int64_t c = 0; c < kStrip; ++c) {
          joined[c] = static_cast<uint32_t>(parts[term][1][c]) << 16 | parts[term][0][c];
        }
      }
    }
  }
}

// The strip of a weight of blocks: its format and first byte.
struct BlockStrip {
  BlockFormat format;
  const char* data;
};

FR_INLINE BlockStrip strip_of(const Blocks& blocks, int64_t strip) {
  int64_t run = 0;
  while (run + 1 < blocks.count && strip >= blocks.runs[run].strips) strip -= blocks.runs[run++].strips;
  const BlockRun& r = blocks.runs[run];
  return {r.format, r.data + strip * r.strip_bytes};
}

// Call body<FORMAT>().
template <typename Body>
FR_INLINE void by_format(BlockFormat format, const Body& body) {
  switch (format) {
    case BlockFormat::q4_0: return body.template operator()<BlockFormat::q4_0>();
    case BlockFormat::q4_1: return body.template operator()<BlockFormat::q4_1>();
    case BlockFormat::q5_0: return body.template operator()<BlockFormat::q5_0>();
    case BlockFormat::q5_1: return body.template operator()<BlockFormat::q5_1>();
    case BlockFormat::q8_0: return body.template operator()<BlockFormat::q8_0>();
    case BlockFormat::q4_k: return body.template operator()<BlockFormat::q4_k>();
    case BlockFormat::q5_k: return body.template operator()<BlockFormat::q5_k>();
    case BlockFormat::q6_k: return body.template operator()<BlockFormat::q6_k>();
  }
}

constexpr int64_t kAhead = 4; // records between the one that is unpacked and the one that is prefetched

// Unpack columns begin to end of a strip, multiples of 32, to the start of `out`.
template <typename T, int TERMS>
FR_INLINE void unpack_columns(const BlockStrip& strip, int64_t padded_size, int64_t begin, int64_t end,
                              const UnpackedPart<T>& out) {
  by_format(strip.format, [&]<BlockFormat FORMAT>() __attribute__((always_inline)) {
    for (int64_t column = begin; column < end; column += kRecord) {
      const Record<FORMAT> record(strip.data, padded_size, column);
      constexpr int64_t bytes = Record<FORMAT>::kBytes;
      for (int64_t line = 0; line < bytes; line += 64) __builtin_prefetch(record.record + kAhead * bytes + line, 0, 3);
      unpack_record<FORMAT, T, TERMS>(record, out, column - begin);
    }
  });
}

// What the rows of a product are beside a weight of blocks, as `rows_scaled` takes them: row r of 32 columns at
// values + r * 32, and the sums of all and of the last 16, negated, at totals + 2 r.
struct ScaledRows {
  const int16_t* values;
  const float *scales, *sums;
  const int32_t* totals;
};

// C [R][32] += the products of rows `row` to `row` + R - 1 in columns begin to end, which share their halves. The bits are
// those of `rows_scaled`, but nothing is written between: the integers are multiplied as they are stored, and what should
// have been subtracted from each is, from their sum. A function of its own, since it is large.
template <BlockFormat FORMAT, int R>
__attribute__((noinline)) void rows_records(const char* strip, int64_t padded_size, int64_t begin, int64_t end,
                                            const ScaledRows& a, int64_t row, float* c, int64_t ldc) {
  using Of = Record<FORMAT>;
  // Sums of an output: one of each half if they have own scales, or two that need not wait for each other.
  constexpr int kSums = Of::kSmallScales || R <= 2 ? 2 : 1;
  // Vectors of lanes that a record is read for: all, so that it is read in order, if the sums leave enough registers.
  constexpr int kLanes = R * kVectors <= 8 ? kVectors : 1;
  for (int64_t lane = 0; lane < kStrip; lane += kLanes * kWidth) {
    const Of first(strip, padded_size, begin);
    vf sum[kLanes][R], shared[2][kLanes];
#pragma GCC unroll 4
    for (int n = 0; n < kLanes; ++n) {
      for (int which = 0; which < 2; ++which) shared[which][n] = first.shared(which, lane + n * kWidth);
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) sum[n][r] = load(c + r * ldc + lane + n * kWidth);
    }
    for (int64_t column = begin; column < end; column += kRecord) {
      const Of record(strip, padded_size, column);
      if (row == 0) { // the record that is read next but seven, a part for each group of lanes
        constexpr int64_t part = Of::kBytes * kLanes * kWidth / kStrip;
        const char* const next = record.record + kSuper * Of::kBytes + lane / (kLanes * kWidth) * part;
        for (int64_t line = 0; line < part; line += 64) __builtin_prefetch(next + line, 0, 3);
      }
      const int64_t at = column + row;
      const int16_t* const left = a.values + at * kStrip;
      const int32_t* const totals = a.totals + 2 * at;
#pragma GCC unroll 4
      for (int n = 0; n < kLanes; ++n) {
        const int64_t from = lane + n * kWidth;
        vi acc[kSums][R] = {};
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) {
          const vi all = fill(totals[2 * r]), last = fill(totals[2 * r + 1]);
          acc[0][r] = (Of::kSmallScales ? all - last : all) * Of::kShape.base;
          if constexpr (Of::kSmallScales) acc[1][r] = last * Of::kShape.base;
        }
        record.template pairs<true>(from, [&](int pair, vi value) __attribute__((always_inline)) {
          const int part = Of::kSmallScales ? pair / 8 : pair % kSums;
#pragma GCC unroll 16
          for (int r = 0; r < R; ++r) acc[part][r] = dot_pairs(acc[part][r], fill_pair(left + r * kStrip + 2 * pair), value);
        });
        if constexpr (Of::kSmallScales) {
          const vi low = record.factor(0, from), high = record.factor(1, from);
#pragma GCC unroll 16
          for (int r = 0; r < R; ++r) acc[0][r] = acc[0][r] * low + acc[1][r] * high;
        } else if constexpr (kSums == 2) {
#pragma GCC unroll 16
          for (int r = 0; r < R; ++r) acc[0][r] += acc[1][r];
        }
        const vf scale = record.scale(from, shared[0][n]), offset = record.offset(from, shared[1][n]);
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) {
          sum[n][r] = add_integers(sum[n][r], acc[0][r], a.scales[at + r], scale);
          if constexpr (Of::kOffsets) sum[n][r] += fill(a.sums[at + r]) * offset;
        }
      }
    }
#pragma GCC unroll 4
    for (int n = 0; n < kLanes; ++n) {
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) store(c + r * ldc + lane + n * kWidth, sum[n][r]);
    }
  }
}

FR_INLINE bool has_offsets(BlockFormat format) {
  const BlockShape& shape = kBlockShapes[static_cast<int>(format)];
  return shape.halves == 2 || shape.supers == 2;
}

void unpack_block(const Blocks& blocks, int64_t padded_size, int64_t strip, int64_t column, float* out) {
  unpack_columns<float, 1>(strip_of(blocks, strip), padded_size, column, column + kRecord, {out, 0, nullptr, nullptr});
}
