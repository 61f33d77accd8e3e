// C [rows][32], its rows ldc apart, = (or +=) A [rows][depth] B [depth][32]; depth is a multiple of 32, rows too or a
// value of `computed_rows`.
// A: row r, columns k..k+31 at A + r * lda + (k / 32) * a_step. B: float [depth][32], or bf16 pairs [depth / 2][32][2].
// Depth is summed 32 at a time, all products of bf16x3 operands before the next 32, in this order for any size, so that
// a product in several calls (each adding to C) gives the bits of one; with a BLOCK, if all but the last have whole ones.

// One operand of a product: TERMS matrices whose sum is the value.
template <typename T, int TERMS>
struct Operand {
  const T* data;
  int64_t term_stride;
};

// The arguments of `gemm`.
template <typename T, int TA, int TB>
struct Product {
  Operand<T, TA> a;
  int64_t lda, a_step;
  Operand<T, TB> b;
  float* c;
  int64_t ldc, rows, depth;
  bool add;
};

// Whether tile units compute these products.
template <typename T>
constexpr bool kTiles = FR_AMX && std::is_same_v<T, bf16>;

// Return the number of rows that `gemm_few` computes for 1 to 32 rows: whole tiles or loops, so at most a few more.
template <typename T>
FR_INLINE int64_t computed_rows(int64_t rows) {
  if constexpr (kTiles<T>) return rows <= 16 ? 16 : 32;
  if (rows > FR_ROWS / 2) return (rows + FR_ROWS - 1) / FR_ROWS * FR_ROWS;
  return rows == 3 ? 4 : rows;
}

// Columns whose float products are summed before they are added to the output of a linear layer: one sum over a depth of
// thousands would be off by several times as much. Attention adds in turn, since its calls have other depths, except over
// heads of more than `kUnblocked` columns.
constexpr int64_t kBlock = 96, kNoBlock = int64_t{1} << 40, kUnblocked = 256;

// Store the sums of a block of columns, or add them to the output; without blocks they hold it already.
template <int R, int64_t BLOCK>
FR_INLINE void add_block(vf (&acc)[R][2], float* c, int64_t ldc, bool add) {
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 2
    for (int n = 0; n < 2; ++n) {
      float* at = c + r * ldc + n * kWidth;
      store(at, BLOCK == kBlock && add ? load(at) + acc[r][n] : acc[r][n]);
    }
  }
}

template <int R, int64_t BLOCK>
FR_INLINE void rows_f32(const float* a, int64_t lda, int64_t a_step, const float* b, float* c, int64_t depth, bool add,
                        int64_t ldc) {
  constexpr int N = 2;
  for (int64_t lane = 0; lane < kStrip; lane += N * kWidth) {
    for (int64_t first = 0; first < depth; first += BLOCK) {
      const int64_t last = lesser(first + BLOCK, depth);
      vf acc[R][N];
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) {
#pragma GCC unroll 2
        for (int n = 0; n < N; ++n) acc[r][n] = BLOCK == kNoBlock && add ? load(c + r * ldc + lane + n * kWidth) : vf{};
      }
      for (int64_t k = first; k < last; ++k) {
        const float* column = a + k / 32 * a_step + k % 32;
        vf right[N];
#pragma GCC unroll 2
        for (int n = 0; n < N; ++n) right[n] = load(b + k * kStrip + lane + n * kWidth);
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) {
#pragma GCC unroll 2
          for (int n = 0; n < N; ++n) acc[r][n] += fill(column[r * lda]) * right[n];
        }
      }
      add_block<R, BLOCK>(acc, c + lane, ldc, add || first > 0);
    }
  }
}

// Do the same with weights that are bf16 pairs [depth / 2][32][2], widened as they are read: the bits are those of
// `rows_f32` on the widened weights.
template <int R>
FR_INLINE void rows_widened(const float* a, int64_t lda, int64_t a_step, const bf16* b, float* c, int64_t depth, bool add,
                            int64_t ldc) {
  const int32_t* pairs = reinterpret_cast<const int32_t*>(b);
  for (int64_t lane = 0; lane < kStrip; lane += 2 * kWidth) {
    for (int64_t start = 0; start < depth; start += kBlock) {
      const int64_t last = lesser(start + kBlock, depth);
      vf acc[R][2] = {};
      for (int64_t k = start; k < last; k += 2) {
        const float* column = a + k / 32 * a_step + k % 32;
        vf even[2], odd[2];
#pragma GCC unroll 2
        for (int n = 0; n < 2; ++n) {
          const vi both = load(pairs + k / 2 * kStrip + lane + n * kWidth);
          even[n] = (vf)(both << 16);
          odd[n] = (vf)(both & fill(static_cast<int32_t>(0xffff0000)));
        }
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) {
          const vf first = fill(column[r * lda]), second = fill(column[r * lda + 1]);
#pragma GCC unroll 2
          for (int n = 0; n < 2; ++n) acc[r][n] = acc[r][n] + first * even[n];
#pragma GCC unroll 2
          for (int n = 0; n < 2; ++n) acc[r][n] = acc[r][n] + second * odd[n];
        }
      }
      add_block<R, kBlock>(acc, c + lane, ldc, add || start > 0);
    }
  }
}

// Write bf16 pairs [depth / 2][32][2] as float [depth][32].
FR_INLINE void widen_strip(const bf16* pairs, float* out, int64_t depth) {
  const int32_t* from = reinterpret_cast<const int32_t*>(pairs);
  for (int64_t i = 0; i < depth / 2 * kStrip; i += kStrip, out += 2 * kStrip) {
    for (int64_t lane = 0; lane < kStrip; lane += kWidth) {
      const vi both = load(from + i + lane);
      store(out + lane, (vf)(both << 16));
      store(out + kStrip + lane, (vf)(both & fill(static_cast<int32_t>(0xffff0000))));
    }
  }
}

// Integers of 14 bits, with a scale for every 32 of a row: products of 32 pairs fit in int32, so only the sums of such
// blocks, in float32, are rounded.
constexpr float kMostInteger = 8191;
constexpr int64_t kScaled = 32;

// Return sum + the products of the two int16 in each lane.
FR_INLINE vi dot_pairs(vi sum, vi a, vi b) {
#if FR_AVX512 && FR_VNNI
  return (vi)_mm512_dpwssd_epi32((__m512i)sum, (__m512i)b, (__m512i)a); // the last may be spread from memory
#elif FR_AVX512
  return sum + (vi)_mm512_madd_epi16((__m512i)a, (__m512i)b);
#elif FR_VNNI
  return (vi)_mm256_dpwssd_avx_epi32((__m256i)sum, (__m256i)a, (__m256i)b);
#elif FR_WIDTH == 8
  return sum + (vi)_mm256_madd_epi16((__m256i)a, (__m256i)b);
#else
  return sum + (a << 16 >> 16) * (b << 16 >> 16) + (a >> 16) * (b >> 16);
#endif
}

#if FR_VNNI
// Return sum + the products of the four bytes in each lane, those of `a` without a sign.
FR_INLINE vi dot_bytes(vi sum, vi a, vi b) {
#if FR_AVX512
  return (vi)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)a, (__m512i)b);
#else
  return (vi)_mm256_dpbusd_avx_epi32((__m256i)sum, (__m256i)a, (__m256i)b);
#endif
}
#endif

template <typename T>
FR_INLINE vi fill_pair(const T* pair) {
  int32_t both;
  std::memcpy(&both, pair, 4);
  return fill(both);
}

// Return sum + the products of 32 columns, whose integers have these scales.
FR_INLINE vf add_integers(vf sum, vi products, float a_scale, vf b_scale) {
  return sum + __builtin_convertvector(products, vf) * (fill(a_scale) * b_scale);
}

#if FR_NEON
// Add the products of 32 columns. NEON multiplies by one lane of a register, so that the values of 8 columns are loaded
// at once; the halves of the pairs are separated once for all rows.
template <int R>
FR_INLINE void add_scaled(const int16_t* a, int64_t lda, const int32_t* pairs, vi (&acc)[R][2]) {
#pragma GCC unroll 1
  for (int64_t j = 0; j < kScaled; j += 8, pairs += 4 * kStrip) {
    int16x8_t left[R];
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) left[r] = vld1q_s16(a + r * lda + j);
    const auto step = [&]<int P>() __attribute__((always_inline)) {
#pragma GCC unroll 2
      for (int n = 0; n < 2; ++n) {
        const int32x4_t both = (int32x4_t)load(pairs + P * kStrip + n * kWidth);
        const int16x4_t even = vmovn_s32(both), odd = vshrn_n_s32(both, 16);
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) {
          const int32x4_t half = vmlal_laneq_s16((int32x4_t)acc[r][n], even, left[r], 2 * P);
          acc[r][n] = (vi)vmlal_laneq_s16(half, odd, left[r], 2 * P + 1);
        }
      }
    };
    step.template operator()<0>();
    step.template operator()<1>();
    step.template operator()<2>();
    step.template operator()<3>();
  }
}
#endif

// C [R][32] = (or +=) A B. A: int16 as for `rows_f32`, the scales of row r and columns k..k+31 at
// a_scale[k / 32 * 32 + r]. B: pairs [depth / 2][32][2], the scales of columns k..k+31 at b_scale + k. With OFFSETS each
// value of B has an offset too, at b_offset + k, and the sum of 32 values of a row of A is at a_sum[k / 32 * 32 + r].
template <int R, bool OFFSETS = false>
FR_INLINE void rows_scaled(const int16_t* a, const float* a_scale, int64_t lda, int64_t a_step, const int16_t* b,
                           const float* b_scale, float* c, int64_t depth, bool add, int64_t ldc,
                           const float* a_sum = nullptr, const float* b_offset = nullptr) {
  const int32_t* pairs = reinterpret_cast<const int32_t*>(b);
  constexpr int N = FR_AVX512 ? 1 : 2; // with 32 registers, the sums of one vector stay in them
  for (int64_t lane = 0; lane < kStrip; lane += N * kWidth) {
    vf sum[R][N];
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 2
      for (int n = 0; n < N; ++n) sum[r][n] = add ? load(c + r * ldc + lane + n * kWidth) : vf{};
    }
    for (int64_t k = 0; k < depth; k += kScaled) {
      const int16_t* columns = a + k / 32 * a_step;
      vi acc[R][N] = {};
#if FR_NEON
      add_scaled<R>(columns, lda, pairs + k / 2 * kStrip + lane, acc);
#else
#pragma GCC unroll 16
      for (int64_t j = 0; j < kScaled; j += 2) {
        vi right[N];
#pragma GCC unroll 2
        for (int n = 0; n < N; ++n) right[n] = load(pairs + (k + j) / 2 * kStrip + lane + n * kWidth);
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) {
          const vi left = fill_pair(columns + r * lda + j);
#pragma GCC unroll 2
          for (int n = 0; n < N; ++n) acc[r][n] = dot_pairs(acc[r][n], left, right[n]);
        }
      }
#endif
#pragma GCC unroll 2
      for (int n = 0; n < N; ++n) {
        const vf scale = load(b_scale + k + lane + n * kWidth);
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) {
          sum[r][n] = add_integers(sum[r][n], acc[r][n], a_scale[k + r], scale);
          if constexpr (OFFSETS) sum[r][n] += fill(a_sum[k + r]) * load(b_offset + k + lane + n * kWidth);
        }
      }
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 2
      for (int n = 0; n < N; ++n) store(c + r * ldc + lane + n * kWidth, sum[r][n]);
    }
  }
}

#if FR_BF16
// The products of bf16x3 are hi*hi, hi*lo and lo*hi; lo*lo is below fp32 rounding.
template <int TA, int TB>
constexpr int kProducts = TA + TB - 1;
template <int TA, int TB>
constexpr int term_of_a(int product) {
  return product == TB ? 1 : 0;
}
template <int TA, int TB>
constexpr int term_of_b(int product) {
  return product < TB ? product : 0;
}

#if FR_AMX
// Two by two tiles of 16 x 16 sums; registers 0..3 hold C, 4 and 5 A, 6 and 7 B. A block of 32 rows is loaded, summed
// over depth 32 at a time, and stored, with no other product in between.
template <int TA, int TB>
FR_INLINE void begin_block(const Product<bf16, TA, TB>& p, int64_t row) {
  const float* out = p.c + row * p.ldc;
  if (p.add) {
    _tile_loadd(0, out, p.ldc * 4);
    _tile_loadd(1, out + 16, p.ldc * 4);
    _tile_loadd(2, out + 16 * p.ldc, p.ldc * 4);
    _tile_loadd(3, out + 16 * p.ldc + 16, p.ldc * 4);
  } else {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  }
}

template <int TA, int TB>
FR_INLINE void add_to_block(const Product<bf16, TA, TB>& p, int64_t row, int64_t k) {
#pragma GCC unroll 4
  for (int product = 0; product < kProducts<TA, TB>; ++product) {
    const bf16* left =
        p.a.data + term_of_a<TA, TB>(product) * p.a.term_stride + row * p.lda + k / 32 * p.a_step;
    const bf16* right = p.b.data + term_of_b<TA, TB>(product) * p.b.term_stride + k * kStrip;
    _tile_loadd(6, right, kStrip * 4);
    _tile_loadd(4, left, p.lda * 2);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, right + 32, kStrip * 4);
    _tile_dpbf16ps(1, 4, 7);
    _tile_loadd(5, left + 16 * p.lda, p.lda * 2);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
}

template <int TA, int TB>
FR_INLINE void end_block(const Product<bf16, TA, TB>& p, int64_t row) {
  float* out = p.c + row * p.ldc;
  _tile_stored(0, out, p.ldc * 4);
  _tile_stored(1, out + 16, p.ldc * 4);
  _tile_stored(2, out + 16 * p.ldc, p.ldc * 4);
  _tile_stored(3, out + 16 * p.ldc + 16, p.ldc * 4);
}

template <int TA, int TB>
FR_INLINE void gemm_bf16(Operand<bf16, TA> a, int64_t lda, int64_t a_step, Operand<bf16, TB> b, float* c,
                         int64_t rows, int64_t depth, bool add, int64_t ldc = kStrip) {
  asm volatile("" ::: "memory"); // the compiler does not know that tile loads read earlier stores
  if (rows == 16) { // half of the code below, for few rows
    if (add) {
      _tile_loadd(0, c, ldc * 4);
      _tile_loadd(1, c + 16, ldc * 4);
    } else {
      _tile_zero(0);
      _tile_zero(1);
    }
    for (int64_t k = 0; k < depth; k += 32) {
#pragma GCC unroll 4
      for (int product = 0; product < kProducts<TA, TB>; ++product) {
        const bf16* left = a.data + term_of_a<TA, TB>(product) * a.term_stride + k / 32 * a_step;
        const bf16* right = b.data + term_of_b<TA, TB>(product) * b.term_stride + k * kStrip;
        _tile_loadd(4, left, lda * 2);
        _tile_loadd(6, right, kStrip * 4);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(7, right + 32, kStrip * 4);
        _tile_dpbf16ps(1, 4, 7);
      }
    }
    _tile_stored(0, c, ldc * 4);
    _tile_stored(1, c + 16, ldc * 4);
    return;
  }
  const Product<bf16, TA, TB> product{a, lda, a_step, b, c, ldc, rows, depth, add};
  for (int64_t row = 0; row < rows; row += 32) {
    begin_block(product, row);
    for (int64_t k = 0; k < depth; k += 32) add_to_block(product, row, k);
    end_block(product, row);
  }
}
#else
// Add the products of 32 columns, with pairs of `b` as vectors of the strip.
template <int R>
FR_INLINE void add_bf16(const bf16* a, int64_t lda, const int32_t* b, vf (&acc)[R][2]) {
#if FR_NEON
#pragma GCC unroll 1
  for (int64_t j = 0; j < 32; j += 8, b += 4 * kStrip) { // by one lane of a register, as in `add_scaled`
    bfloat16x8_t left[R];
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) left[r] = vreinterpretq_bf16_u16(vld1q_u16(a + r * lda + j));
    const auto step = [&]<int P>() __attribute__((always_inline)) {
#pragma GCC unroll 2
      for (int n = 0; n < 2; ++n) {
        const bfloat16x8_t right = vreinterpretq_bf16_s32((int32x4_t)load(b + P * kStrip + n * kWidth));
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) acc[r][n] = (vf)vbfdotq_laneq_f32((float32x4_t)acc[r][n], right, left[r], P);
      }
    };
    step.template operator()<0>();
    step.template operator()<1>();
    step.template operator()<2>();
    step.template operator()<3>();
  }
#else
  for (int64_t j = 0; j < 32; j += 2, b += kStrip) {
    const __m512bh first = (__m512bh)load(b), second = (__m512bh)load(b + kWidth);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      int32_t pair;
      std::memcpy(&pair, a + r * lda + j, 4);
      const __m512bh spread = (__m512bh)fill(pair);
      acc[r][0] = (vf)_mm512_dpbf16_ps((__m512)acc[r][0], spread, first);
      acc[r][1] = (vf)_mm512_dpbf16_ps((__m512)acc[r][1], spread, second);
    }
  }
#endif
}

template <int TA, int TB, int R>
FR_INLINE void rows_bf16(Operand<bf16, TA> a, int64_t lda, int64_t a_step, Operand<bf16, TB> b, float* c, int64_t depth,
                         bool add, int64_t ldc) {
  for (int64_t lane = 0; lane < kStrip; lane += 2 * kWidth) {
    vf acc[R][2];
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 2
      for (int n = 0; n < 2; ++n) acc[r][n] = add ? load(c + r * ldc + lane + n * kWidth) : vf{};
    }
    for (int64_t k = 0; k < depth; k += 32) {
#pragma GCC unroll 4
      for (int product = 0; product < kProducts<TA, TB>; ++product) {
        const bf16* left = a.data + term_of_a<TA, TB>(product) * a.term_stride + k / 32 * a_step;
        const int32_t* right =
            reinterpret_cast<const int32_t*>(b.data + term_of_b<TA, TB>(product) * b.term_stride + k * kStrip) + lane;
        add_bf16<R>(left, lda, right, acc);
      }
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 2
      for (int n = 0; n < 2; ++n) store(c + r * ldc + lane + n * kWidth, acc[r][n]);
    }
  }
}
#endif
#endif

// Compute R rows on the vector units, starting at the first.
template <int R, int64_t BLOCK, typename T, int TA, int TB>
FR_INLINE void some_rows(Operand<T, TA> a, int64_t lda, int64_t a_step, Operand<T, TB> b, float* c, int64_t depth,
                         bool add, int64_t ldc) {
  if constexpr (std::is_same_v<T, float>) {
    rows_f32<R, BLOCK>(a.data, lda, a_step, b.data, c, depth, add, ldc);
  } else {
#if FR_BF16 && !FR_AMX
    rows_bf16<TA, TB, R>(a, lda, a_step, b, c, depth, add, ldc);
#endif
  }
}

template <typename T, int TA, int TB, int64_t BLOCK = kNoBlock>
FR_INLINE void gemm(Operand<T, TA> a, int64_t lda, int64_t a_step, Operand<T, TB> b, float* c, int64_t rows,
                    int64_t depth, bool add, int64_t ldc = kStrip) {
#if FR_AMX
  if constexpr (kTiles<T>) {
    gemm_bf16<TA, TB>(a, lda, a_step, b, c, rows, depth, add, ldc);
    return;
  }
#endif
  for (int64_t row = 0; row < rows; row += FR_ROWS) {
    const Operand<T, TA> some{a.data + row * lda, a.term_stride};
    some_rows<FR_ROWS, BLOCK>(some, lda, a_step, b, c + row * ldc, depth, add, ldc);
  }
}

// Run `gemm` for `computed_rows` rows; all of them must be readable in A and writable in C.
template <typename T, int TA, int TB, int64_t BLOCK>
FR_INLINE void gemm_few(Operand<T, TA> a, int64_t lda, int64_t a_step, Operand<T, TB> b, float* c, int64_t rows,
                        int64_t depth, bool add, int64_t ldc) {
  if constexpr (!kTiles<T>) {
    switch (rows) {
      case 1: return some_rows<1, BLOCK>(a, lda, a_step, b, c, depth, add, ldc);
      case 2: return some_rows<2, BLOCK>(a, lda, a_step, b, c, depth, add, ldc);
#if FR_ROWS > 4
      case 4: return some_rows<4, BLOCK>(a, lda, a_step, b, c, depth, add, ldc);
#endif
      default: break;
    }
  }
  gemm<T, TA, TB, BLOCK>(a, lda, a_step, b, c, rows, depth, add, ldc);
}

// Products in pieces between other instructions: tile units run asynchronously, so vector units need not wait for them.
// Elsewhere a product is one piece, run at the end. The bits are those of `gemm`.
template <typename T, int TA, int TB>
class Queue {
 public:
  FR_MEMBER void push(const Product<T, TA, TB>& product) { products_[count_++] = product; }

  FR_MEMBER void step() {
#if FR_AMX
    if constexpr (kTiles<T>) {
      if (at_ < count_) advance();
    }
#endif
  }

  FR_MEMBER void finish() {
#if FR_AMX
    if constexpr (kTiles<T>) {
      while (at_ < count_) advance();
    }
#endif
    for (; at_ < count_; ++at_) {
      const Product<T, TA, TB>& p = products_[at_];
      if (std::is_same_v<T, float> && p.depth > kUnblocked) {
        gemm<T, TA, TB, kBlock>(p.a, p.lda, p.a_step, p.b, p.c, p.rows, p.depth, p.add, p.ldc);
      } else {
        gemm<T, TA, TB>(p.a, p.lda, p.a_step, p.b, p.c, p.rows, p.depth, p.add, p.ldc);
      }
    }
    at_ = count_ = 0;
  }

 private:
#if FR_AMX
  FR_MEMBER void advance() {
    const Product<T, TA, TB>& p = products_[at_];
    asm volatile("" ::: "memory"); // as in gemm_bf16
    if (k_ == 0) begin_block(p, row_);
    add_to_block(p, row_, k_);
    if ((k_ += 32) < p.depth) return;
    end_block(p, row_);
    k_ = 0;
    if ((row_ += 32) < p.rows) return;
    row_ = 0;
    ++at_;
  }
  int64_t row_ = 0, k_ = 0;
#endif
  Product<T, TA, TB> products_[2];
  int at_ = 0, count_ = 0;
};
