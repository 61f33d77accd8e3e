// Products of rows and the integers of a weight of blocks.

// Up to how many rows of integers of 14 bits are multiplied as bytes, which are unpacked in fewer steps and joined in more.
constexpr int64_t kByteRows = FR_VNNI ? 2 : 0;

// Up to how many vectors of sums leave enough registers to read a record for all lanes at once.
constexpr int64_t kSumsAtOnce = 8;

// What the rows of a product are beside a weight of blocks, as `rows_scaled` takes them: row r of 32 columns at
// values + r * 32 (up to `kByteRows` as `split_bytes` leaves them), and the sums of all and of the last 16, negated, at
// totals + 2 r. Rows of bf16 have sums alone.
template <typename T>
struct RecordRows {
  const T* values;
  const float *scales, *sums;
  const int32_t* totals;
};

#if FR_VNNI
// Add the products of R rows and a record to their sums, without the offsets. Four bytes of the weight's integers are
// multiplied at a time, by the upper and by the lower ones of the rows'.
template <BlockFormat FORMAT, int R>
FR_INLINE void add_bytes(const Record<FORMAT>& record, int64_t lane, vf shared, const RecordRows<int16_t>& left,
                         vf (&sum)[R]) {
  using Of = Record<FORMAT>;
  constexpr int kParts = Of::kSmallScales ? 2 : 1, kEach = 8 / kParts; // quads of a part
  vi all[R];
  const auto part = [&]<int PART>() __attribute__((always_inline)) {
    vi high[R] = {}, low[R];
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      const int32_t whole = left.totals[2 * r], last = left.totals[2 * r + 1];
      low[r] = fill((kParts == 1 ? whole : PART == 0 ? whole - last : last) * Of::kByteBase);
    }
    record.template quads<PART * kEach, kEach>(lane, [&](int quad, vi value) __attribute__((always_inline)) {
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) {
        const int16_t* const four = left.values + r * kStrip + 4 * quad;
        high[r] = dot_bytes(high[r], value, fill_pair(four));
        low[r] = dot_bytes(low[r], value, fill_pair(four + 2));
      }
    });
    vi factor{};
    if constexpr (Of::kSmallScales) factor = record.factor(PART, lane);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      vi sums = (high[r] << 8) + low[r];
      if constexpr (Of::kSmallScales) sums *= factor;
      all[r] = PART == 0 ? sums : all[r] + sums;
    }
  };
  part.template operator()<0>();
  if constexpr (kParts == 2) part.template operator()<1>();
  const vf scale = record.scale(lane, shared);
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) sum[r] = add_integers(sum[r], all[r], left.scales[r], scale);
}
#endif

// Do the same for any number of rows. The integers are multiplied as they are stored, and what should have been subtracted
// from each is, from their sum.
template <BlockFormat FORMAT, int R>
FR_INLINE void add_record(const Record<FORMAT>& record, int64_t lane, vf shared, const RecordRows<int16_t>& left,
                          vf (&sum)[R]) {
#if FR_VNNI
  if constexpr (R <= kByteRows) return add_bytes<FORMAT, R>(record, lane, shared, left, sum);
#endif
  using Of = Record<FORMAT>;
  // Sums of an output: one of each half if they have own scales, or two that need not wait for each other.
  constexpr int kSums = Of::kSmallScales || R <= 2 ? 2 : 1;
  vi acc[kSums][R] = {};
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
    const vi all = fill(left.totals[2 * r]), last = fill(left.totals[2 * r + 1]);
    acc[0][r] = (Of::kSmallScales ? all - last : all) * Of::kShape.base;
    if constexpr (Of::kSmallScales) acc[1][r] = last * Of::kShape.base;
  }
  record.template pairs<true>(lane, [&](int pair, vi value) __attribute__((always_inline)) {
    const int part = Of::kSmallScales ? pair / 8 : pair % kSums;
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      acc[part][r] = dot_pairs(acc[part][r], fill_pair(left.values + r * kStrip + 2 * pair), value);
    }
  });
  if constexpr (Of::kSmallScales) {
    const vi low = record.factor(0, lane), high = record.factor(1, lane);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) acc[0][r] = acc[0][r] * low + acc[1][r] * high;
  } else if constexpr (kSums == 2) {
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) acc[0][r] += acc[1][r];
  }
  const vf scale = record.scale(lane, shared);
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) sum[r] = add_integers(sum[r], acc[0][r], left.scales[r], scale);
}

#if FR_EXACT
// Do the same with bf16: the integers are exact in it.
template <BlockFormat FORMAT, int R>
FR_INLINE void add_record(const Record<FORMAT>& record, int64_t lane, vf shared, const RecordRows<bf16>& left, vf (&sum)[R]) {
  using Of = Record<FORMAT>;
  constexpr int kSums = Of::kSmallScales ? 2 : 1;
  vf acc[kSums][R] = {};
  record.bf16_pairs(lane, [&](int pair, vi value) __attribute__((always_inline)) {
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      vf& to = acc[pair * kSums / 16][r];
      const __m512bh spread = (__m512bh)fill_pair(left.values + r * kStrip + 2 * pair);
      to = (vf)_mm512_dpbf16_ps((__m512)to, (__m512bh)value, spread); // the last may be spread from memory
    }
  });
#pragma GCC unroll 2
  for (int part = 0; part < kSums; ++part) {
    vf scale;
    if constexpr (Of::kSmallScales) {
      scale = record.half_scale(part, lane, shared);
    } else {
      scale = record.scale(lane, shared);
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) sum[r] += acc[part][r] * scale;
  }
}
#endif

// C [R][32] += the products of rows `row` to `row` + R - 1 in columns begin to end, from a multiple of 256 on. The bits are
// those of `rows_scaled` for integers, but nothing is written between. A function of its own, since it is large.
template <BlockFormat FORMAT, int R, typename T>
__attribute__((noinline)) void rows_records(const char* strip, int64_t begin, int64_t end,
                                            const RecordRows<T>& a, int64_t row, float* c, int64_t ldc) {
  using Of = Record<FORMAT>;
  constexpr int kLanes = R * kVectors <= kSumsAtOnce ? kVectors : 1; // vectors of lanes that a record is read for
  for (int64_t lane = 0; lane < kStrip; lane += kLanes * kWidth) {
    vf sum[kLanes][R];
#pragma GCC unroll 4
    for (int n = 0; n < kLanes; ++n) {
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) sum[n][r] = load(c + r * ldc + lane + n * kWidth);
    }
    for (int64_t group = begin; group < end; group += kSuper * kRecord) {
      const Of first(strip, group);
      vf shared[2][kLanes];
#pragma GCC unroll 4
      for (int n = 0; n < kLanes; ++n) {
        for (int which = 0; which < 2; ++which) shared[which][n] = first.shared(which, lane + n * kWidth);
      }
      for (int64_t column = group; column < lesser(group + kSuper * kRecord, end); column += kRecord) {
        const Of record(strip, column);
        // Records are read in order, which the hardware foresees if little is computed in between: for one or two rows
        // further prefetches cost up to a quarter of the time, for 16 they save a tenth.
        if (R > 2 && row == 0) { // the record that is read next but seven, a part for each group of lanes
          constexpr int64_t part = Of::kBytes * kLanes * kWidth / kStrip;
          const char* const next = record.record + kSuper * Of::kBytes + lane / (kLanes * kWidth) * part;
          for (int64_t line = 0; line < part; line += 64) __builtin_prefetch(next + line, 0, 3);
        }
        const int64_t at = column + row;
        const RecordRows<T> left{a.values + at * kStrip, a.scales + at, a.sums + at, a.totals + 2 * at};
#pragma GCC unroll 4
        for (int n = 0; n < kLanes; ++n) {
          const int64_t from = lane + n * kWidth;
          add_record<FORMAT, R>(record, from, shared[0][n], left, sum[n]);
          if constexpr (Of::kOffsets) {
            const vf offset = record.offset(from, shared[1][n]);
#pragma GCC unroll 16
            for (int r = 0; r < R; ++r) sum[n][r] += fill(left.sums[r]) * offset;
          }
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

#if FR_EXACT
// C [R][32] = (or +=) the products of rows of bf16 and integers that `unpack_integers` wrote, with SCALES scales for every
// 32 columns. Row r and columns k..k+31 of A are at a + r * lda + k / 32 * a_step, their sum at a_sum[k + r], read only
// with OFFSETS. The bits are those of `rows_records`.
template <int R, int SCALES, bool OFFSETS>
__attribute__((noinline)) void rows_integers(const bf16* a, int64_t lda, int64_t a_step, const float* a_sum,
                                             const UnpackedPart<bf16>& b, float* c, int64_t depth, bool add, int64_t ldc) {
  const bf16* rows[R]; // compilers compute R addresses for every pair of columns, unless they are given them
  vf sum[R][2];
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
    rows[r] = a + r * lda;
#pragma GCC unroll 2
    for (int n = 0; n < 2; ++n) sum[r][n] = add ? load(c + r * ldc + n * kWidth) : vf{};
  }
  const int32_t* pairs = reinterpret_cast<const int32_t*>(b.values);
  for (int64_t k = 0; k < depth; k += kRecord) {
#pragma GCC unroll 2
    for (int part = 0; part < SCALES; ++part) {
      constexpr int kEach = 16 / SCALES; // pairs of columns
      vf acc[R][2] = {};
#pragma GCC unroll 16
      for (int pair = part * kEach; pair < (part + 1) * kEach; ++pair, pairs += kStrip) {
        const __m512bh first = (__m512bh)load(pairs), second = (__m512bh)load(pairs + kWidth);
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) {
          const __m512bh spread = (__m512bh)fill_pair(rows[r] + 2 * pair);
          acc[r][0] = (vf)_mm512_dpbf16_ps((__m512)acc[r][0], first, spread);
          acc[r][1] = (vf)_mm512_dpbf16_ps((__m512)acc[r][1], second, spread);
        }
      }
#pragma GCC unroll 2
      for (int n = 0; n < 2; ++n) {
        const vf scale = load(b.scales + k * SCALES + part * kStrip + n * kWidth);
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) sum[r][n] += acc[r][n] * scale;
        if constexpr (OFFSETS) {
          const vf offset = load(b.offsets + k + n * kWidth);
#pragma GCC unroll 16
          for (int r = 0; r < R; ++r) sum[r][n] += fill(a_sum[k + r]) * offset;
        }
      }
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      __builtin_prefetch(rows[r] + R * lda, 0, 3); // of the next call
      rows[r] += a_step;
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 2
    for (int n = 0; n < 2; ++n) store(c + r * ldc + n * kWidth, sum[r][n]);
  }
}
#endif
