// Weights that keep the integers of their file: unpacked 32 columns of a strip at a time, just before they are
// multiplied. The values are those of the file's definition in float32, bit for bit.

typedef uint16_t v_u16 __attribute__((vector_size(FR_WIDTH * 2), aligned(2), may_alias));
typedef uint8_t v_u8 __attribute__((vector_size(FR_WIDTH), aligned(1), may_alias));
typedef int16_t v_i16 __attribute__((vector_size(FR_WIDTH * 4))); // two in each lane

// Return integers without a sign as int32. Compilers widen vectors of them one by one, unless told how.
FR_INLINE vi widen_bytes(const char* bytes) {
#if FR_AVX512
  return (vi)_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes)));
#elif defined(__x86_64__) && FR_WIDTH == 8
  return (vi)_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(bytes)));
#else
  return __builtin_convertvector(*reinterpret_cast<const v_u8*>(bytes), vi);
#endif
}
FR_INLINE vi widen_words(const char* words) {
#if defined(__x86_64__) && FR_WIDTH == 8
  return (vi)_mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(words)));
#else
  return __builtin_convertvector(*reinterpret_cast<const v_u16*>(words), vi);
#endif
}

// Return halves as floats; none of them is infinite, which packing makes sure of.
FR_INLINE vf widen_halves(const char* halves) {
#if FR_AVX512
  return (vf)_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(halves)));
#elif FR_WIDTH == 8
  return (vf)_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(halves)));
#else
  const vi bits = widen_words(halves);
  const vi magnitude = (bits & fill(int32_t{0x7fff})) << 13, sign = (bits & fill(int32_t{0x8000})) << 16;
  const vi smallest = fill(int32_t{113 << 23});
  // Below the normal halves, subtracting the exponent's own value leaves the fraction.
  const vf small = (vf)(magnitude + smallest) - (vf)smallest;
  const vf normal = (vf)(magnitude + fill(int32_t{112 << 23}));
  return (vf)((vi)(magnitude < fill(int32_t{1 << 23}) ? small : normal) | sign);
#endif
}

// Shift bit `bit` to bit 4.
FR_INLINE vi to_fourth(vi bits, int bit) { return bit < 4 ? bits << (4 - bit) : bits >> (bit - 4); }

// What integers of 4 to 6 bits are as bf16 once `BASE` is subtracted, or by a table of codes. Those of 4 bits have any
// fifth.
template <int BASE, int HIGH, const int8_t* TABLE>
struct Integers {
  alignas(64) bf16 values[64];

  constexpr Integers() : values{} {
    for (int i = 0; i < 64; ++i) {
      int value = i % (16 << HIGH) - BASE;
      if constexpr (TABLE != nullptr) value = TABLE[i % 16];
      values[i] = static_cast<bf16>(__builtin_bit_cast(uint32_t, static_cast<float>(value)) >> 16);
    }
  }
};
template <int BASE, int HIGH, const int8_t* TABLE>
constexpr Integers<BASE, HIGH, TABLE> kIntegers{};

// Return what codes stand for in a table, two in each lane.
template <const int8_t* TABLE>
FR_INLINE vi look_up(vi codes) {
#if FR_AVX512
  const __m512i bytes = _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(TABLE)));
  const vi found = (vi)_mm512_shuffle_epi8(bytes, (__m512i)codes);
#elif defined(__x86_64__) && FR_WIDTH == 8
  const __m256i bytes = _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(TABLE)));
  const vi found = (vi)_mm256_shuffle_epi8(bytes, (__m256i)codes);
#elif defined(__aarch64__) && FR_WIDTH == 4
  const vi found = (vi)vreinterpretq_s32_s8(vqtbl1q_s8(vld1q_s8(TABLE), vreinterpretq_u8_s32((int32x4_t)codes)));
#else
  vi found;
  for (int lane = 0; lane < kWidth; ++lane) {
    found[lane] = (TABLE[codes[lane] & 15] & 255) | (TABLE[codes[lane] >> 16 & 15] & 255) << 16;
  }
#endif
  return (vi)((v_i16)(found << 8) >> 8); // the upper byte of each has been looked up too
}

#if FR_VNNI
// Return what codes stand for in a table, four in each lane, plus 128.
template <const int8_t* TABLE>
FR_INLINE vi look_up_bytes(vi codes) {
  const __m128i table = _mm_xor_si128(_mm_loadu_si128(reinterpret_cast<const __m128i*>(TABLE)), _mm_set1_epi8(-128));
#if FR_AVX512
  return (vi)_mm512_shuffle_epi8(_mm512_broadcast_i32x4(table), (__m512i)codes);
#else
  return (vi)_mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table), (__m256i)codes);
#endif
}
#endif

// The record of 32 columns of a strip, from lane `lane` on.
template <BlockFormat FORMAT>
struct Record {
  static constexpr BlockShape kShape = kBlockShapes[static_cast<int>(FORMAT)];
  static constexpr bool kOffsets = kShape.halves == 2 || kShape.supers == 2;
  static constexpr bool kSmallScales = kShape.smalls > 0 && kShape.supers == 1; // within the integers
  static constexpr int64_t kHighAt = low_bytes(kShape), kHalvesAt = kHighAt + high_bytes(kShape);
  static constexpr int64_t kSmallsAt = kHalvesAt + 64 * kShape.halves;
  static constexpr int64_t kBytes = record_bytes(kShape);

  const char* record;
  const char* super;

  FR_MEMBER Record(const char* strip, int64_t column)
      : record(strip + record_at(kShape, column)), super(strip + super_at(kShape, column)) {}

  FR_MEMBER vi small(int which, int64_t lane) const {
    return widen_bytes(record + kSmallsAt + 32 * which + lane);
  }

  // Return the halves that 8 records share: what `scale` and `offset` are made from.
  FR_MEMBER vf shared(int which, int64_t lane) const {
    return which < kShape.supers ? widen_halves(super + 64 * which + 2 * lane) : vf{};
  }

  FR_MEMBER vf scale(int64_t lane, vf shared) const {
    if constexpr (kShape.bf16) return (vf)(widen_words(record + kHalvesAt + 2 * lane) << 16);
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

  // Return the whole scales of columns 16 half to 16 half + 15.
  FR_MEMBER vf half_scale(int half, int64_t lane, vf shared) const {
    return shared * __builtin_convertvector(factor(half, lane), vf);
  }

  // Call body(pair, integers) for the 16 pairs of columns: in each lane the integers of columns 2 pair and 2 pair + 1. RAW:
  // without `base` subtracted and `factor` multiplied. LOOSE: with any bits above the integers of 4 bits, codes as they are.
  template <bool RAW = false, bool LOOSE = false, typename Body>
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
#pragma GCC unroll 16
    for (int pair = 0; pair < 16; ++pair) {
      const int quad = pair / 4 * 2 + pair % 2, byte = pair % 4 / 2; // that its columns are in, see `quads`
      const int word = kShape.low == 8 ? quad : pair / 4, t = kShape.low == 8 ? byte : pair % 4;
      const vi bits = load(low + word * kStrip);
      vi value;
      if constexpr (kShape.low == 8) {
        value = (vi)((v_i16)(t == 0 ? bits << 8 : bits) >> 8);
      } else {
        value = bits >> 4 * t;
        if constexpr (!LOOSE) value &= fill(int32_t{0x000f000f});
      }
      if constexpr (kShape.high == 1) {
        value |= to_fourth(load(high), 8 * byte + quad) & fill(int32_t{0x00100010});
      } else if constexpr (kShape.high == 2) {
        value |= to_fourth(load(high + quad / 4 * kStrip), 8 * byte + quad % 4 * 2) & fill(int32_t{0x00300030});
      }
      if constexpr (kShape.table != nullptr && !LOOSE) value = look_up<kShape.table>(value);
      if constexpr (kShape.base > 0 && !RAW) value = (vi)((v_i16)value - (v_i16)fill(int32_t{kShape.base << 16 | kShape.base}));
      if constexpr (kSmallScales && !RAW) value = (vi)((v_i16)value * (v_i16)both[pair / 8]);
      body(pair, value);
    }
  }

#if FR_VNNI
  // What `quads` leaves to be subtracted from its integers.
  static constexpr int kByteBase = kShape.low == 8 || kShape.table != nullptr ? 128 : kShape.base;

  // Call body(quad, integers) for `COUNT` of the 8 fours of columns, from `FIRST` on: in the bytes of each lane the integers
  // of columns c, c + 4, c + 1 and c + 5 without a sign, where c is quad / 2 * 8 + quad % 2 * 2.
  template <int FIRST, int COUNT, typename Body>
  FR_MEMBER void quads(int64_t lane, const Body& body) const {
    const int32_t* low = reinterpret_cast<const int32_t*>(record) + lane;
    const int32_t* high = reinterpret_cast<const int32_t*>(record + kHighAt) + lane;
#pragma GCC unroll 8
    for (int quad = FIRST; quad < FIRST + COUNT; ++quad) {
      vi value;
      if constexpr (kShape.low == 8) {
        value = load(low + quad * kStrip) ^ fill(static_cast<int32_t>(0x80808080));
      } else {
        const vi bits = load(low + quad / 2 * kStrip);
        value = (quad % 2 == 0 ? bits : bits >> 4) & fill(int32_t{0x0f0f0f0f});
      }
      if constexpr (kShape.high == 1) {
        value |= to_fourth(load(high), quad) & fill(int32_t{0x10101010});
      } else if constexpr (kShape.high == 2) {
        value |= to_fourth(load(high + quad / 4 * kStrip), quad % 4 * 2) & fill(int32_t{0x30303030});
      }
      if constexpr (kShape.table != nullptr) value = look_up_bytes<kShape.table>(value);
      body(quad, value);
    }
  }
#endif

#if FR_BF16 && FR_AVX512
  // Call body(pair, integers) like `pairs`, with `base` subtracted and as bf16, which holds integers of 8 bits.
  template <typename Body>
  FR_MEMBER void bf16_pairs(int64_t lane, const Body& body) const {
    if constexpr (kShape.low == 4) {
      const bf16* const values = kIntegers<kShape.base, kShape.high, kShape.table>.values;
      const __m512i first = _mm512_load_si512(values), second = _mm512_load_si512(values + 32);
      pairs<true, kShape.high == 0>(lane, [&](int pair, vi value) __attribute__((always_inline)) {
        if constexpr (kShape.high == 2) {
          body(pair, (vi)_mm512_permutex2var_epi16(first, (__m512i)value, second));
        } else {
          body(pair, (vi)_mm512_permutexvar_epi16((__m512i)value, first)); // which reads 5 bits
        }
      });
    } else {
      pairs(lane, [&](int pair, vi value) __attribute__((always_inline)) {
        const vi even = (vi)__builtin_convertvector(value << 16 >> 16, vf), odd = (vi)__builtin_convertvector(value >> 16, vf);
        body(pair, (even >> 16 & fill(int32_t{0xffff})) | odd);
      });
    }
  }
#endif
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
// scale and an offset for every 32 columns, [columns / 32][32] each. Integers in bf16 pairs have these too.
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
    case BlockFormat::q3_k: return body.template operator()<BlockFormat::q3_k>();
    case BlockFormat::iq4_nl: return body.template operator()<BlockFormat::iq4_nl>();
    case BlockFormat::iq4_xs: return body.template operator()<BlockFormat::iq4_xs>();
    case BlockFormat::mxfp4: return body.template operator()<BlockFormat::mxfp4>();
  }
}

constexpr int64_t kAhead = 4; // records between the one that is unpacked and the one that is prefetched

// Unpack columns begin to end of a strip, multiples of 32, to the start of `out`.
template <typename T, int TERMS>
FR_INLINE void unpack_columns(const BlockStrip& strip, int64_t begin, int64_t end, const UnpackedPart<T>& out) {
  by_format(strip.format, [&]<BlockFormat FORMAT>() __attribute__((always_inline)) {
    for (int64_t column = begin; column < end; column += kRecord) {
      const Record<FORMAT> record(strip.data, column);
      constexpr int64_t bytes = Record<FORMAT>::kBytes;
      for (int64_t line = 0; line < bytes; line += 64) __builtin_prefetch(record.record + kAhead * bytes + line, 0, 3);
      unpack_record<FORMAT, T, TERMS>(record, out, column - begin);
    }
  });
}

#if FR_EXACT
// Unpack columns begin to end of a strip as bf16 integers, with a scale and an offset for every 32 columns, or 2 scales if
// halves of a record have their own.
FR_INLINE void unpack_integers(const BlockStrip& strip, int64_t begin, int64_t end, const UnpackedPart<bf16>& out) {
  by_format(strip.format, [&]<BlockFormat FORMAT>() __attribute__((always_inline)) {
    using Of = Record<FORMAT>;
    for (int64_t column = begin; column < end; column += kRecord) {
      const Of record(strip.data, column);
      for (int64_t line = 0; line < Of::kBytes; line += 64) {
        __builtin_prefetch(record.record + kAhead * Of::kBytes + line, 0, 3);
      }
      const int64_t at = column - begin;
      for (int64_t lane = 0; lane < kStrip; lane += kWidth) {
        int32_t* pairs = reinterpret_cast<int32_t*>(out.values + at * kStrip) + lane;
        record.bf16_pairs(lane, [&](int pair, vi value) __attribute__((always_inline)) {
          write(pairs + pair * kStrip, value);
        });
        const vf shared = record.shared(0, lane);
        if constexpr (Of::kSmallScales) {
          for (int half = 0; half < 2; ++half) {
            store(out.scales + 2 * at + half * kStrip + lane, record.half_scale(half, lane, shared));
          }
        } else {
          store(out.scales + at + lane, record.scale(lane, shared));
        }
        if constexpr (Of::kOffsets) store(out.offsets + at + lane, record.offset(lane));
      }
    }
  });
}
#endif

FR_INLINE bool has_offsets(BlockFormat format) {
  const BlockShape& shape = kBlockShapes[static_cast<int>(format)];
  return shape.halves == 2 || shape.supers == 2;
}

void unpack_block(const Blocks& blocks, int64_t strip, int64_t column, float* out, int64_t stride) {
  alignas(64) float columns[kRecord * kStrip];
  unpack_columns<float, 1>(strip_of(blocks, strip), column, column + kRecord, {columns, 0, nullptr, nullptr});
  for (int64_t row = 0; row < kStrip; row += 16) {
    for (int64_t c = 0; c < kRecord; c += 16) {
      transpose16(columns + c * kStrip + row, kStrip, out + row * stride + c, stride);
    }
  }
}
