// Multiply a block of rows by strips of a packed weight.
//
// The weight is packed once in strips of 32 rows and is the second operand of the product. The inputs are the first,
// rounded (or written as two terms, or as integers) row by row into the workspace. So a product has the layout of the
// output and is stored there directly.

// What the operands of a product are made of. TW and TI are the terms of a weight and of an input.
template <typename T, int TERMS_W, int TERMS_I>
struct Plain {
  using Input = T;
  using Weight = T;
  static constexpr int TW = TERMS_W, TI = TERMS_I;
};
struct Widened : Plain<float, 1, 1> { // bf16 weights times float32 inputs
  using Weight = bf16;
};
struct Scaled : Plain<int16_t, 1, 1> {}; // integers with a scale for every 32
// A weight of blocks, unpacked to such operands.
template <typename T, int TERMS_W, int TERMS_I>
struct Unpacked : Plain<T, TERMS_W, TERMS_I> {
  static constexpr bool kBlocks = true;
};

template <typename F>
constexpr bool kScales = std::is_same_v<typename F::Input, int16_t>;
template <typename F>
constexpr bool kBlocks = requires { F::kBlocks; };
// Whether the integers of a weight of blocks are multiplied unscaled, since bf16 holds them.
template <typename F>
constexpr bool kExact = FR_EXACT && kBlocks<F> && F::TW == 1 && F::TI == 1 && std::is_same_v<typename F::Input, bf16>;
template <typename F>
constexpr bool kWidens = std::is_same_v<F, Widened>;

constexpr int64_t kLine = 64; // bytes
// Depth of a chunk of a strip, which stays in the first cache, with as much of the rows: 24 KB of floats, 18 KB of others. Of
// integers with inputs of 14 bits it is as many columns as share a half.
template <typename F>
constexpr int64_t kDepth = sizeof(typename F::Input) == 4 ? 192 : kScales<F> ? kSuper * kRecord : 288;

// What a chunk is a multiple of, so that sums do not depend on how many there are.
template <typename F>
constexpr int64_t kChunkStep = sizeof(typename F::Input) == 4 ? kBlock : kStrip;

// Load up to 32 rows of `source` from `first` on as operand rows, with zeros for missing rows.
template <typename T, int TERMS>
FR_INLINE void stage_rows(const Source& source, int64_t first, int64_t count, int64_t size, int64_t padded, T* out,
                          int64_t term_stride) {
  for (int64_t i = 0; i < kStrip; ++i) {
    T* row = out + i * padded;
    if (i < count) {
      load_row<T, TERMS>(row_of(source, first + i, 0), source.bf16, size, padded, row, term_stride);
    } else {
      for (int k = 0; k < TERMS; ++k) std::memset(row + k * term_stride, 0, padded * sizeof(T));
    }
  }
}

// Where half of 32 values are this many times smaller than their largest, the integers of one scale would round them more
// coarsely than bf16 does: what they leave is multiplied too.
constexpr float kCoarse = 96;

// Write 32 values as integers of at most kMostInteger, and return their scale: NaN if a value is not finite. `coarse` is set
// if one scale does not suffice.
FR_INLINE float scale_values(const float* values, int16_t* out, bool* coarse = nullptr) {
  vf most{};
  vi odd{};
  for (int64_t i = 0; i < kScaled; i += kWidth) {
    const vf x = load(values + i);
    most = larger(most, larger(x, -x));
    odd |= x - x != vf{}; // an infinity or a NaN
  }
#if FR_AVX512
  const float largest = _mm512_reduce_max_ps((__m512)most);
#else
  float largest = 0;
  for (int i = 0; i < kWidth; ++i) largest = most[i] > largest ? most[i] : largest;
#endif
  const bool finite = !any(odd);
  if (coarse != nullptr) {
    const vf bound = fill(largest / kCoarse);
    int small = 0;
    for (int64_t i = 0; i < kScaled; i += kWidth) {
      const vf x = load(values + i);
      small += count((larger(x, -x) < bound) & (x != vf{}));
    }
    *coarse = finite && small >= kScaled / 2;
  }
  // Below, the factor would overflow; such values are zero beside any other.
  const float factor = finite && largest > 1e-30f ? kMostInteger / largest : 0.0f;
  for (int64_t i = 0; i < kScaled; i += kWidth) {
    const vi rounded = __builtin_convertvector(whole(finite ? load(values + i) * fill(factor) : vf{}), vi);
#if FR_AVX512
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + i), _mm512_cvtepi32_epi16((__m512i)rounded));
#else
    for (int k = 0; k < kWidth; ++k) out[i + k] = static_cast<int16_t>(rounded[k]);
#endif
  }
  return finite ? (factor > 0 ? largest / kMostInteger : 0.0f) : std::numeric_limits<float>::quiet_NaN();
}

// Bytes of a packed weight: its strips, then their scales, then the factors of its inputs.
template <typename F>
int64_t packed_bytes(int64_t strips, int64_t padded) {
  const int64_t values = strips * kStrip * padded;
  return values * F::TW * static_cast<int64_t>(sizeof(typename F::Weight)) +
         (kScales<F> ? (values / kScaled + padded) * static_cast<int64_t>(sizeof(float)) : 0);
}

// The scales of a strip of a packed weight, [padded / 32][32].
template <typename F, typename A>
FR_INLINE float* strip_scales(const A& a, const void* packed, int64_t strip) {
  const char* first = static_cast<const char*>(packed) +
                      a.strips * kStrip * a.padded_size * static_cast<int64_t>(sizeof(typename F::Weight));
  return const_cast<float*>(reinterpret_cast<const float*>(first)) + strip * a.padded_size;
}

// What the columns of the input are multiplied by, since those of the weight were divided by it, [padded].
template <typename F, typename A>
FR_INLINE float* column_factors(const A& a, const void* packed) {
  return strip_scales<F>(a, packed, a.strips);
}

FR_INLINE void multiply_values(float* values, const float* factors, int64_t n) {
  for (int64_t i = 0; i < n; i += kWidth) store(values + i, load(values + i) * load(factors + i));
}

template <typename F>
void pack_weight(const PackArgs& a, int64_t strip, void* workspace) {
  using T = typename F::Weight;
  T* staging = static_cast<T*>(workspace);
  const int64_t size = kStrip * a.padded_size, first = strip * kStrip, count = lesser(kStrip, a.width - first);
  if constexpr (kScales<F>) {
    float* row = reinterpret_cast<float*>(static_cast<char*>(workspace) + size * static_cast<int64_t>(sizeof(T)));
    float* scales = strip_scales<F>(a, a.packed, strip);
    if (strip == 0) {
      for (int64_t k = 0; k < a.padded_size; ++k) column_factors<F>(a, a.packed)[k] = 1 / a.columns[k];
    }
    for (int64_t i = 0; i < kStrip; ++i) {
      if (i < count) {
        load_row<float, 1>(row_of(a.weight, first + i, 0), a.weight.bf16, a.size, a.padded_size, row, 0);
      } else {
        std::memset(row, 0, a.padded_size * sizeof(float));
      }
      multiply_values(row, a.columns, a.padded_size);
      for (int64_t k = 0; k < a.padded_size; k += kScaled) {
        scales[k + i] = scale_values(row + k, staging + i * a.padded_size + k);
      }
    }
  } else {
    stage_rows<T, F::TW>(a.weight, first, count, a.size, a.padded_size, staging, size);
  }
  for (int k = 0; k < F::TW; ++k) {
    pack_strip<T>(staging + k * size, a.padded_size, a.padded_size,
                  static_cast<T*>(a.packed) + (k * a.strips + strip) * size);
  }
}

template <typename F>
int64_t pack_weight_workspace(const PackArgs& a) {
  return F::TW * kStrip * a.padded_size * static_cast<int64_t>(sizeof(typename F::Weight)) +
         (kScales<F> ? a.padded_size * static_cast<int64_t>(sizeof(float)) : 0);
}

template <typename T, int TERMS>
void unpack_strip(const LinearArgs& a, int64_t strip, void* packed) {
  const int64_t size = kStrip * a.padded_size;
  const UnpackedPart<T> out{static_cast<T*>(packed) + strip * size, a.strips * size, nullptr, nullptr};
  unpack_columns<T, TERMS>(strip_of(a.blocks, strip), 0, a.padded_size, out);
}

// What the integers of one scale leave of some blocks of 32 inputs: again integers and a scale each, found from the block's
// number in its row by `first`, and from one of them to another row's by `next`; -1 ends both.
struct Rest {
  int16_t* values; // [count][32]
  float* scales;
  int32_t *rows, *next, *first;
  int32_t count;
};

// How many rows are multiplied by a record's integers of 14 bits as it is read; for more, records are unpacked into the
// first cache.
constexpr int64_t kFewRows = FR_NEON ? 0 : kStrip;

#if FR_VNNI
// Split 32 integers x into bytes, x = 256 upper + lower, and write those of every 8 in the order of `quads`: the upper and
// the lower ones of values 0, 4, 1 and 5, then of 2, 6, 3 and 7.
FR_INLINE void split_bytes(int16_t* values) {
  const __m128i order = _mm_setr_epi8(1, 9, 3, 11, 0, 8, 2, 10, 5, 13, 7, 15, 4, 12, 6, 14);
  const __m128i half = _mm_set1_epi16(128);
  for (int i = 0; i < kScaled; i += 8) {
    __m128i* const eight = reinterpret_cast<__m128i*>(values + i);
    // 128 is added so that the upper byte is rounded to the nearest, and taken from the lower one, which has a sign.
    const __m128i both = _mm_xor_si128(_mm_add_epi16(_mm_loadu_si128(eight), half), half);
    _mm_storeu_si128(eight, _mm_shuffle_epi8(both, order));
  }
}
#endif

// Write the sums of 32 values and of their last 16, negated, and return the sum of all times their scale.
FR_INLINE float sum_of(const int16_t* values, float scale, int32_t* totals) {
#if FR_AVX512
  const __m512i pairs = _mm512_madd_epi16((__m512i)load(reinterpret_cast<const int32_t*>(values)), _mm512_set1_epi16(1));
  const int32_t first = _mm512_mask_reduce_add_epi32(0x00ff, pairs), last = _mm512_mask_reduce_add_epi32(0xff00, pairs);
#else
  int32_t first = 0, last = 0;
  for (int64_t c = 0; c < kScaled / 2; ++c) {
    first += values[c];
    last += values[kScaled / 2 + c];
  }
#endif
  totals[0] = -(first + last);
  totals[1] = -last;
  return static_cast<float>(first + last) * scale;
}

#if FR_EXACT
// Return the sums of the values of columns 2 i and 2 i + 1 of 32.
FR_INLINE vf pair_sums(const bf16* values) {
  const vi both = load(reinterpret_cast<const int32_t*>(values));
  return (vf)(both << 16) + (vf)(both & fill(static_cast<int32_t>(0xffff0000)));
}

// Write the sums of 32 values of each of `count` rows that are `stride` apart. Sixteen rows are added at once, pair by pair
// as `_mm512_reduce_add_ps` does, so that the bits are its own.
FR_INLINE void sum_rows(const bf16* values, int64_t stride, int64_t count, float* sums) {
  for (; count >= 16; count -= 16, values += 16 * stride, sums += 16) {
    __m512 x[16];
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) x[i] = (__m512)pair_sums(values + (i % 4 * 4 + i / 4) * stride); // so that sums are in order
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) {
      const __m512 a = x[2 * i], b = x[2 * i + 1];
      x[i] = _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xee));
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      const __m512 a = x[2 * i], b = x[2 * i + 1];
      x[i] = _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd));
    }
#pragma GCC unroll 2
    for (int i = 0; i < 2; ++i) {
      const __m512 a = x[2 * i], b = x[2 * i + 1];
      x[i] = _mm512_add_ps(_mm512_shuffle_ps(a, b, 0x44), _mm512_shuffle_ps(a, b, 0xee));
    }
    store(sums, (vf)_mm512_add_ps(_mm512_shuffle_ps(x[0], x[1], 0x88), _mm512_shuffle_ps(x[0], x[1], 0xdd)));
  }
  for (int64_t i = 0; i < count; ++i) sums[i] = _mm512_reduce_add_ps((__m512)pair_sums(values + i * stride));
}
#endif

// Load up to 32 rows with every 32 columns together, [padded / 32][32][32]: the data of one step of a product are then
// contiguous, and 32 rows of any depth do not compete for a few sets of the cache. Scales are [padded / 32][32], and so are
// the sums of 32 values of integers, which a weight with offsets needs; those of the integers themselves are `totals`. Row 0
// is row `at` of `rest`. If `bytes`, integers are split into them.
template <typename F>
FR_INLINE void stage_columns(const Source& source, int64_t first, int64_t count, int64_t size, int64_t padded,
                             typename F::Input* out, int64_t term_stride, float* scales, float* sums,
                             int32_t* totals, const float* factors, Rest& rest, int64_t at, bool bytes) {
  using T = typename F::Input;
  const int64_t width = source.bf16 ? 2 : 4;
  const int64_t computed = computed_rows<T>(count); // the others are not read
  for (int64_t i = 0; i < computed; ++i) {
    const char* row = i < count ? static_cast<const char*>(row_of(source, first + i, 0)) : nullptr;
    for (int64_t k = 0; k < padded; k += kStrip) {
      T* to = out + k * kStrip + i * kStrip;
      if (row == nullptr) {
        for (int t = 0; t < F::TI; ++t) std::memset(to + t * term_stride, 0, kStrip * sizeof(T));
        if constexpr (kScales<F>) scales[k + i] = 0;
        if constexpr (kScales<F> && kBlocks<F>) sums[k + i] = totals[2 * (k + i)] = totals[2 * (k + i) + 1] = 0;
      } else if constexpr (kScales<F>) {
        alignas(64) float values[kStrip];
        load_row<float, 1>(row + k * width, source.bf16, lesser(kStrip, size - k), kStrip, values, 0);
        if constexpr (!kBlocks<F>) multiply_values(values, factors + k, kStrip);
        bool coarse;
        scales[k + i] = scale_values(values, to, &coarse);
        if constexpr (kBlocks<F>) sums[k + i] = sum_of(to, scales[k + i], totals + 2 * (k + i));
        if (coarse) {
          for (int64_t c = 0; c < kStrip; ++c) values[c] -= static_cast<float>(to[c]) * scales[k + i];
          int16_t* const left = rest.values + rest.count * kScaled;
          rest.scales[rest.count] = scale_values(values, left);
          int32_t unused[2];
          if constexpr (kBlocks<F>) sums[k + i] += sum_of(left, rest.scales[rest.count], unused);
          rest.rows[rest.count] = static_cast<int32_t>(at + i);
          rest.next[rest.count] = rest.first[k / kScaled];
          rest.first[k / kScaled] = rest.count++;
        }
#if FR_VNNI
        if constexpr (kBlocks<F>) {
          if (bytes) split_bytes(to);
        }
#endif
      } else {
        load_row<T, F::TI>(row + k * width, source.bf16, lesser(kStrip, size - k), kStrip, to, term_stride);
      }
    }
  }
}

// The rows as operands: in the input itself, or staged.
template <typename F>
struct Rows {
  const typename F::Input* direct; // whole strips in the input, null if all are staged
  int64_t direct_stride, direct_rows;
  const typename F::Input* staged; // the others, [padded / 32][32][32] each
  const float *scales, *sums; // [padded / 32][32] each: of the staged, or the sums of all rows of bf16
  const int32_t* totals; // [padded / 32][32][2]
  int64_t padded, term;
  bool few; // at most `kFewRows`
  float* wide; // memory for a widened chunk of a strip
  UnpackedPart<typename F::Input> part; // and for an unpacked one
  Rest rest;
};

// Call body<R>(row) for the rows of a strip from 0 on, R at a time, as `gemm_few` does; `rows` is a value of
// `computed_rows`.
template <typename Body>
FR_INLINE void by_rows(int64_t rows, const Body& body) {
  switch (rows) {
    case 1: return body.template operator()<1>(0);
    case 2: return body.template operator()<2>(0);
#if FR_ROWS > 4
    case 4: return body.template operator()<4>(0);
#endif
    default: break;
  }
  for (int64_t row = 0; row < rows; row += FR_ROWS) body.template operator()<FR_ROWS>(row);
}

// Add the products of what one scale left of rows begin to end in columns low to high, by column. A weight of blocks is
// unpacked for them unless columns low to high are (`unpacked`).
template <typename F>
FR_INLINE void add_rest(const LinearArgs& a, const Rows<F>& rows, int64_t strip, int64_t begin, int64_t end, float* out,
                        int64_t out_stride, int64_t low, int64_t high, bool unpacked) {
  const Rest& rest = rows.rest;
  for (int64_t from = low; rest.count > 0 && from < high; from += kScaled) {
    int32_t i = rest.first[from / kScaled];
    if (i < 0) continue;
    const int16_t* weight;
    const float* scales;
    if constexpr (kBlocks<F>) {
      if (!unpacked) unpack_columns<int16_t, 1>(strip_of(a.blocks, strip), from, from + kScaled, rows.part);
      const int64_t at = unpacked ? from - low : 0;
      weight = rows.part.values + at * kStrip;
      scales = rows.part.scales + at;
    } else {
      weight = static_cast<const int16_t*>(a.packed) + (strip * a.padded_size + from) * kStrip;
      scales = strip_scales<F>(a, a.packed, strip) + from;
    }
    for (; i >= 0; i = rest.next[i]) {
      const int64_t row = rest.rows[i];
      if (row < begin || row >= end) continue;
      float* to = out + (row - begin) * out_stride;
      rows_scaled<1>(rest.values + i * kScaled, rest.scales + i, 0, 0, weight, scales, to, kScaled, true, out_stride);
    }
  }
}

// Multiply rows by one strip of a weight of blocks, which is read once, in order.
template <typename F>
FR_INLINE void multiply_records(const LinearArgs& a, const Rows<F>& rows, int64_t strip, int64_t begin, int64_t end,
                                float* out, int64_t out_stride, bool add) {
  const BlockStrip packed = strip_of(a.blocks, strip);
  using T = typename F::Input;
  // More rows than pass at once read the columns that share a half again, from the first cache. Where one scale left
  // something, it is added after these columns, so that sums have one order.
  const bool parts = (end - begin) * kVectors > kSumsAtOnce || (kScales<F> && rows.rest.count > 0);
  const int64_t chunk = parts ? kSuper * kRecord : a.padded_size;
  for (int64_t from = 0; from < a.padded_size; from += chunk) {
    const int64_t past = lesser(from + chunk, a.padded_size);
    for (int64_t row = begin; row < end; row += kStrip) {
      const int64_t computed = computed_rows<T>(lesser(end - row, kStrip)), block = row / kStrip * rows.padded;
      const RecordRows<T> left{rows.staged + (row - rows.direct_rows) * rows.padded, rows.scales + block, rows.sums + block,
                               rows.totals + 2 * block};
      float* const to = out + (row - begin) * out_stride;
      for (int64_t r = 0; !add && from == 0 && r < computed; ++r) {
        std::memset(to + r * out_stride, 0, kStrip * sizeof(float));
      }
      by_format(packed.format, [&]<BlockFormat FORMAT>() __attribute__((always_inline)) {
        by_rows(computed, [&]<int R>(int64_t r) __attribute__((always_inline)) {
          rows_records<FORMAT, R>(packed.data, from, past, left, r, to + r * out_stride, out_stride);
        });
      });
    }
    if constexpr (kScales<F>) add_rest<F>(a, rows, strip, begin, end, out, out_stride, from, past, false);
  }
}

#if FR_EXACT
// Multiply rows by one strip of a weight of blocks: a chunk of its integers is unpacked into the first cache, and all rows
// pass, four at a time, whose sums and products stay in registers for both vectors of the strip.
template <typename F>
FR_INLINE void multiply_integers(const LinearArgs& a, const Rows<F>& rows, int64_t strip, int64_t begin, int64_t end,
                                 float* out, int64_t out_stride, bool add) {
  const BlockStrip packed = strip_of(a.blocks, strip);
  const BlockShape& shape = kBlockShapes[static_cast<int>(packed.format)];
  const int64_t chunks = (a.padded_size + kDepth<F> - 1) / kDepth<F>;
  const int64_t even = round_up((a.padded_size + chunks - 1) / chunks, kRecord);
  const int64_t chunk = shape.supers > 0 ? kSuper * kRecord : even;
  for (int64_t from = 0; from < a.padded_size; from += chunk) {
    const int64_t depth = lesser(chunk, a.padded_size - from);
    unpack_integers(packed, from, from + depth, rows.part);
    for (int64_t row = begin; row < end; row += kStrip) {
      const bool direct = row < rows.direct_rows;
      const bf16* const left = direct ? rows.direct + row * rows.direct_stride + from
                                      : rows.staged + (row - rows.direct_rows) * rows.padded + from * kStrip;
      const int64_t lda = direct ? rows.direct_stride : kStrip, a_step = direct ? kStrip : kStrip * kStrip;
      const float* const sums = rows.sums + row / kStrip * rows.padded + from;
      float* const to = out + (row - begin) * out_stride;
      const auto some = [&]<int R>(int64_t r) __attribute__((always_inline)) {
        const auto multiply = [&]<int SCALES, bool OFFSETS>() __attribute__((always_inline)) {
          rows_integers<R, SCALES, OFFSETS>(left + r * lda, lda, a_step, sums + r, rows.part, to + r * out_stride, depth,
                                            add || from > 0, out_stride);
        };
        if (shape.smalls > 0 && shape.supers == 1) {
          multiply.template operator()<2, false>();
        } else if (has_offsets(packed.format)) {
          multiply.template operator()<1, true>();
        } else {
          multiply.template operator()<1, false>();
        }
      };
      const int64_t computed = computed_rows<bf16>(lesser(end - row, kStrip));
      if (computed == 1) some.template operator()<1>(0);
      if (computed == 2) some.template operator()<2>(0);
      for (int64_t r = 0; r + 4 <= computed; r += 4) some.template operator()<4>(r);
    }
  }
}
#endif

// Multiply by one strip of a weight of blocks, as `multiply_strip` does by others: a chunk of its depth is unpacked into
// the first cache, and all rows pass. For a few rows a chunk is small, so that reading the strip does not pause.
template <typename F>
FR_INLINE void multiply_unpacked(const LinearArgs& a, const Rows<F>& rows, int64_t strip, int64_t begin, int64_t end,
                                 float* out, int64_t out_stride, bool add) {
  using T = typename F::Input;
  if constexpr (kExact<F>) {
#if FR_EXACT
    if (end - begin > kStrip || begin < rows.direct_rows) {
      return multiply_integers<F>(a, rows, strip, begin, end, out, out_stride, add);
    }
#endif
    return multiply_records<F>(a, rows, strip, begin, end, out, out_stride, add);
  } else if constexpr (kScales<F>) {
    if (rows.few) return multiply_records<F>(a, rows, strip, begin, end, out, out_stride, add);
  }
  const BlockStrip packed = strip_of(a.blocks, strip);
  const bool offsets = has_offsets(packed.format);
  const int64_t chunk = end - begin > FR_ROWS ? kDepth<F> : kChunkStep<F>;
  for (int64_t from = 0; from < a.padded_size; from += chunk) {
    const int64_t depth = lesser(chunk, a.padded_size - from);
    unpack_columns<T, F::TW>(packed, from, from + depth, rows.part);
    const Operand<T, F::TW> right{rows.part.values, rows.part.term_stride};
    for (int64_t row = begin; row < end; row += kStrip) {
      float* to = out + (row - begin) * out_stride;
      const bool sum = add || from > 0;
      const int64_t computed = computed_rows<T>(lesser(end - row, kStrip));
      if constexpr (kScales<F>) {
        by_rows(computed, [&]<int R>(int64_t r) __attribute__((always_inline)) {
          const T* left = rows.staged + row * rows.padded + (from + r) * kStrip;
          const int64_t at = row / kStrip * rows.padded + from + r;
          constexpr int64_t step = kStrip * kStrip;
          float* into = to + r * out_stride;
          if (offsets) {
            rows_scaled<R, true>(left, rows.scales + at, kStrip, step, right.data, rows.part.scales, into, depth, sum,
                                 out_stride, rows.sums + at, rows.part.offsets);
          } else {
            rows_scaled<R>(left, rows.scales + at, kStrip, step, right.data, rows.part.scales, into, depth, sum, out_stride);
          }
        });
      } else if (row < rows.direct_rows) {
        const Operand<T, F::TI> left{rows.direct + row * rows.direct_stride + from, 0};
        gemm<T, F::TI, F::TW, kBlock>(left, rows.direct_stride, kStrip, right, to, kStrip, depth, sum, out_stride);
      } else {
        const T* left = rows.staged + (row - rows.direct_rows) * rows.padded + from * kStrip;
        gemm_few<T, F::TI, F::TW, kBlock>({left, rows.term}, kStrip, kStrip * kStrip, right, to, computed, depth, sum,
                                          out_stride);
      }
    }
    if constexpr (kScales<F>) { // at the same columns whatever a chunk is, so that sums do not depend on the other rows
      const int64_t past = from + depth;
      const int64_t low = (past - 1) / kDepth<F> * kDepth<F>;
      if (past % kDepth<F> == 0 || past == a.padded_size) {
        add_rest<F>(a, rows, strip, begin, end, out, out_stride, low, past, low == from);
      }
    }
  }
}

// Multiply rows begin to end (multiples of 32, or the end) by one strip of the weight, into `out` (or add to it).
// A chunk of a strip's depth stays in the first cache while all rows pass. Between chunks the sums stay in the output;
// their order is that of one chunk. Meanwhile the next chunk is prefetched: the weight is larger than the caches near
// the core, and each row of tiles would wait for its part of it.
template <typename F>
FR_INLINE void multiply_strip(const LinearArgs& a, const Rows<F>& rows, int64_t strip, int64_t begin, int64_t end,
                              float* out, int64_t out_stride, bool add, int64_t next_strip) {
  using T = typename F::Input;
  using W = typename F::Weight;
  if constexpr (kBlocks<F>) {
    multiply_unpacked<F>(a, rows, strip, begin, end, out, out_stride, add);
    return;
  }
  const int64_t packed_strip = kStrip * a.padded_size;
  const W* weight = static_cast<const W*>(a.packed) + strip * packed_strip;
  const int64_t steps = (end - begin + kStrip - 1) / kStrip;
  const int64_t chunks = steps > 2 ? (a.padded_size + kDepth<F> - 1) / kDepth<F> : 1;
  const int64_t chunk = round_up((a.padded_size + chunks - 1) / chunks, kChunkStep<F>);
  for (int64_t from = 0; from < a.padded_size; from += chunk) {
    const int64_t depth = lesser(chunk, a.padded_size - from);
    const char* next = reinterpret_cast<const char*>(
        from + chunk < a.padded_size ? weight + (from + chunk) * kStrip
                                     : static_cast<const W*>(a.packed) + lesser(next_strip, a.strips - 1) * packed_strip);
    const int64_t lines = lesser(chunk, a.padded_size) * kStrip * static_cast<int64_t>(sizeof(W)) / kLine;
    const int64_t share = (lines + steps - 1) / steps;
    // For a few rows a vector unit reads a strip of weights once, in order, and the hardware prefetches it; further
    // prefetches only delay it.
    const bool ahead = kTiles<T> || steps > 2;
    if constexpr (kWidens<F>) {
      if (steps > 2) widen_strip(weight + from * kStrip, rows.wide, depth);
    }
    for (int64_t row = begin; row < end; row += kStrip) {
      const int64_t line = (row - begin) / kStrip * share;
      const int64_t last = ahead ? lesser(line + share, lines) : line;
      for (int64_t i = line; i < last; ++i) __builtin_prefetch(next + i * kLine, 0, 2);
      float* to = out + (row - begin) * out_stride;
      const int64_t count = lesser(end - row, kStrip);
      const bool sum = add || from > 0;
      if constexpr (kScales<F> || kWidens<F>) {
        const T* left = rows.staged + row * rows.padded + from * kStrip;
        by_rows(computed_rows<T>(count), [&]<int R>(int64_t r) __attribute__((always_inline)) {
          const T* some = left + r * kStrip;
          constexpr int64_t step = kStrip * kStrip;
          float* into = to + r * out_stride;
          if constexpr (kScales<F>) {
            const float* scales = strip_scales<F>(a, a.packed, strip) + from;
            rows_scaled<R>(some, rows.scales + row / kStrip * rows.padded + from + r, kStrip, step,
                           weight + from * kStrip, scales, into, depth, sum, out_stride);
          } else if (steps > 2) {
            rows_f32<R, kBlock>(some, kStrip, step, rows.wide, into, depth, sum, out_stride);
          } else {
            rows_widened<R>(some, kStrip, step, weight + from * kStrip, into, depth, sum, out_stride);
          }
        });
      } else {
        const Operand<W, F::TW> right{weight + from * kStrip, a.strips * packed_strip};
        if (row < rows.direct_rows) {
          const Operand<T, F::TI> left{rows.direct + row * rows.direct_stride + from, 0};
          gemm<T, F::TI, F::TW, kBlock>(left, rows.direct_stride, kStrip, right, to, kStrip, depth, sum, out_stride);
        } else {
          const T* left = rows.staged + (row - rows.direct_rows) * rows.padded;
          gemm_few<T, F::TI, F::TW, kBlock>({left + from * kStrip, rows.term}, kStrip, kStrip * kStrip, right, to,
                                            computed_rows<T>(count), depth, sum, out_stride);
        }
      }
    }
  }
  if constexpr (kScales<F>) add_rest<F>(a, rows, strip, begin, end, out, out_stride, 0, a.padded_size, true);
}

// Store the products, or add them to the output. Rows and columns that do not fill a strip go through the buffer and
// are summed in the same order.
template <typename F>
FR_INLINE void store_strip(const LinearArgs& a, const Rows<F>& operand, int64_t strip, int64_t begin, int64_t rows,
                           float* buffer) {
  const bool add = a.after == After::add;
  const int64_t first = strip * kStrip, columns = lesser(kStrip, a.width - first);
  const int64_t whole = columns == kStrip ? rows / kStrip * kStrip : 0;
  float* out = static_cast<float*>(a.out) + begin * a.out_stride + first;
  if (whole > 0) multiply_strip<F>(a, operand, strip, 0, whole, out, a.out_stride, add, strip + 1);
  if (whole < rows) {
    for (int64_t r = whole; add && r < rows; ++r) {
      for (int64_t c = 0; c < columns; ++c) buffer[(r - whole) * kStrip + c] = out[r * a.out_stride + c];
    }
    multiply_strip<F>(a, operand, strip, whole, rows, buffer, kStrip, add, strip + 1);
    for (int64_t r = whole; r < rows; ++r) {
      for (int64_t c = 0; c < columns; ++c) out[r * a.out_stride + c] = buffer[(r - whole) * kStrip + c];
    }
  }
  if (a.bias == nullptr) return;
  for (int64_t r = 0; r < rows; ++r) {
    float* to = out + r * a.out_stride;
    for (int64_t c = 0; c < columns; ++c) to[c] += a.bias[first + c];
  }
}

template <typename O>
FR_INLINE void gate_strip(const LinearArgs& a, int64_t strip, int64_t begin, int64_t rows, const float* gates,
                          const float* ups) {
  const int64_t first = strip * kStrip, half = a.width / 2;
  for (int64_t r = 0; r < rows; ++r) {
    O* to = static_cast<O*>(a.out) + (begin + r) * a.out_stride + first;
    for (int64_t c = 0; c < kStrip; c += kWidth) {
      vf gate = load(gates + r * kStrip + c), up = load(ups + r * kStrip + c);
      if (a.bias != nullptr) {
        gate += load(a.bias + first + c);
        up += load(a.bias + half + first + c);
      }
      store_some(to + c, activate(a.activation, gate) * up, kWidth);
    }
  }
}

// The parts of a thread's workspace for a block of rows.
template <typename F>
struct LinearSpace {
  typename F::Input* staged; // [TI][row_block][padded]
  float *scales, *sums; // [row_block / 32][padded]
  int32_t* totals; // [row_block / 32][padded][2]
  float* wide; // a chunk of a strip
  UnpackedPart<typename F::Input> part; // also
  Rest rest; // of up to all blocks
  float* buffer; // [2][row_block][32]

  // Return the bytes of the workspace; set the pointers if it is given.
  static int64_t layout(const LinearArgs& a, void* base, LinearSpace* out) {
    int64_t at = 0;
    LinearSpace none{};
    LinearSpace& space = out != nullptr ? *out : none;
    const auto take = [&](auto*& pointer, int64_t count) {
      using Item = std::remove_reference_t<decltype(*pointer)>;
      if (base != nullptr) pointer = reinterpret_cast<Item*>(static_cast<char*>(base) + at);
      at = round_up(at + count * static_cast<int64_t>(sizeof(Item)), 64);
    };
    take(space.staged, F::TI * a.row_block * a.padded_size);
    take(space.scales, kScales<F> ? a.row_block / kStrip * a.padded_size : 0);
    take(space.sums, (kScales<F> && kBlocks<F>) || kExact<F> ? a.row_block / kStrip * a.padded_size : 0);
    take(space.totals, kScales<F> && kBlocks<F> ? 2 * a.row_block / kStrip * a.padded_size : 0);
    if constexpr (kScales<F>) {
      const int64_t most = a.row_block * a.padded_size / kScaled;
      take(space.rest.values, most * kScaled);
      take(space.rest.scales, most);
      take(space.rest.rows, most);
      take(space.rest.next, most);
      take(space.rest.first, a.padded_size / kScaled);
    }
    take(space.wide, kWidens<F> ? kDepth<F> * kStrip : 0);
    if constexpr (kBlocks<F>) {
      space.part.term_stride = kDepth<F> * kStrip;
      take(space.part.values, F::TW * space.part.term_stride);
      take(space.part.scales, kExact<F> ? 2 * kDepth<F> : kScales<F> ? kDepth<F> : 0);
      take(space.part.offsets, kScales<F> || kExact<F> ? kDepth<F> : 0);
    }
    take(space.buffer, 2 * kStrip * a.row_block);
    return at;
  }
};

FR_INLINE bool any_offsets(const Blocks& blocks) {
  bool any = false;
  for (int64_t i = 0; i < blocks.count; ++i) any |= has_offsets(blocks.runs[i].format);
  return any;
}

// Make the rows of a block that are no operands yet into operands.
template <typename F>
FR_INLINE void stage_block(const LinearArgs& a, int64_t begin, int64_t rows, const LinearSpace<F>& space, Rows<F>& operand) {
  using T = typename F::Input;
  if constexpr (kScales<F>) {
    for (int64_t k = 0; k < a.padded_size / kScaled; ++k) operand.rest.first[k] = -1;
  }
  for (int64_t row = operand.direct_rows; row < rows; row += kStrip) {
    const int64_t at = (row - operand.direct_rows) * a.padded_size;
    stage_columns<F>(a.input, begin + row, lesser(kStrip, rows - row), a.size, a.padded_size, space.staged + at, operand.term,
                     kScales<F> ? space.scales + at / kStrip : nullptr,
                     kScales<F> && kBlocks<F> ? space.sums + at / kStrip : nullptr,
                     kScales<F> && kBlocks<F> ? space.totals + 2 * at / kStrip : nullptr,
                     kScales<F> && !kBlocks<F> ? column_factors<F>(a, a.packed) : nullptr, operand.rest, row,
                     rows <= kByteRows);
  }
#if FR_EXACT
  if constexpr (kExact<F>) {
    for (int64_t row = 0; any_offsets(a.blocks) && row < rows; row += kStrip) {
      const bool direct = row < operand.direct_rows;
      const bf16* values = direct ? operand.direct + row * operand.direct_stride
                                  : operand.staged + (row - operand.direct_rows) * a.padded_size;
      for (int64_t k = 0; k < a.padded_size; k += kStrip, values += direct ? kStrip : kStrip * kStrip) {
        sum_rows(values, direct ? operand.direct_stride : kStrip, computed_rows<T>(lesser(kStrip, rows - row)),
                 space.sums + row / kStrip * a.padded_size + k);
      }
    }
  }
#endif
}

template <typename F>
void linear(const LinearArgs& a, int64_t block, int64_t slice, void* workspace, Held* held) {
  using T = typename F::Input;
  LinearSpace<F> space{};
  LinearSpace<F>::layout(a, workspace, &space);
  const int64_t begin = block * a.row_block, rows = lesser(a.row_block, a.rows - begin);
  const int64_t term = a.row_block * a.padded_size;
  Rows<F> operand{nullptr, 0, 0, space.staged, space.scales, space.sums, space.totals, a.padded_size,
                  term, rows <= kFewRows, space.wide, space.part, space.rest};
  if constexpr (std::is_same_v<T, bf16> && F::TI == 1) {
    if (a.input.bf16 && a.size == a.padded_size && (!kExact<F> || rows > kStrip)) {
      operand.direct = static_cast<const bf16*>(row_of(a.input, begin, 0));
      operand.direct_stride = a.input.token_stride;
      operand.direct_rows = rows / kStrip * kStrip;
    }
  }
  if (held != nullptr && held->args == &a && held->block == block) {
    operand.rest.count = held->rest;
  } else {
    stage_block<F>(a, begin, rows, space, operand);
    if (held != nullptr) *held = {&a, block, operand.rest.count};
  }
  const int64_t strips = a.after == After::gate ? a.strips / 2 : a.strips;
  const int64_t low = slice * a.slice_strips, high = lesser(low + a.slice_strips, strips);
  if (a.after != After::gate) {
    for (int64_t strip = low; strip < high; ++strip) store_strip<F>(a, operand, strip, begin, rows, space.buffer);
    return;
  }
  // For a few rows several strips of the gate are read and then as many of its factor: memory is faster in long pieces.
  const int64_t computed = rows > kStrip ? round_up(rows, kStrip) : computed_rows<T>(rows);
  const int64_t together = a.row_block / computed, products = computed * kStrip;
  float *const gates = space.buffer, *const ups = gates + together * products;
  for (int64_t first = low; first < high; first += together) {
    const int64_t count = lesser(together, high - first);
    for (int64_t i = 0; i < count; ++i) {
      const int64_t next = i + 1 < count ? first + i + 1 : strips + first;
      multiply_strip<F>(a, operand, first + i, 0, rows, gates + i * products, kStrip, false, next);
    }
    for (int64_t i = 0; i < count; ++i) {
      const int64_t next = i + 1 < count ? strips + first + i + 1 : first + count;
      multiply_strip<F>(a, operand, strips + first + i, 0, rows, ups + i * products, kStrip, false, next);
    }
    for (int64_t i = 0; i < count; ++i) {
      const float *const gate = gates + i * products, *const up = ups + i * products;
      a.out_bf16 ? gate_strip<bf16>(a, first + i, begin, rows, gate, up)
                 : gate_strip<float>(a, first + i, begin, rows, gate, up);
    }
  }
}

template <typename F>
int64_t linear_workspace(const LinearArgs& a) {
  return LinearSpace<F>::layout(a, nullptr, nullptr);
}
