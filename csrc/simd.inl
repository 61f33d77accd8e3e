// Vectors of the instruction set being compiled (FR_WIDTH floats), the functions that softmax needs, and packing.
// kernels_*.cpp include this inside their own namespace.

typedef float vf __attribute__((vector_size(FR_WIDTH * 4)));
typedef int32_t vi __attribute__((vector_size(FR_WIDTH * 4)));
typedef float vf_u __attribute__((vector_size(FR_WIDTH * 4), aligned(4), may_alias));
typedef int32_t vi_u __attribute__((vector_size(FR_WIDTH * 4), aligned(4), may_alias));

constexpr int kWidth = FR_WIDTH;
constexpr int kVectors = kStrip / kWidth; // vectors of a strip

FR_INLINE vf load(const float* p) { return *reinterpret_cast<const vf_u*>(p); }
FR_INLINE vi load(const int32_t* p) { return *reinterpret_cast<const vi_u*>(p); }
FR_INLINE void store(float* p, vf x) { *reinterpret_cast<vf_u*>(p) = x; }
FR_INLINE vf fill(float x) { return x - vf{}; }
FR_INLINE vi fill(int32_t x) { return x - vi{}; }
FR_INLINE vf larger(vf a, vf b) {
#if FR_AVX512
  return (vf)_mm512_max_ps((__m512)a, (__m512)b);
#else
  return a > b ? a : b; // on NEON too, whose maximum treats NaN otherwise
#endif
}
FR_INLINE bool any(vi mask) {
#if FR_AVX512
  return _mm512_movepi32_mask((__m512i)mask) != 0;
#elif FR_NEON
  return vmaxvq_u32((uint32x4_t)mask) != 0;
#else
  int32_t all = 0;
  for (int i = 0; i < kWidth; ++i) all |= mask[i];
  return all != 0;
#endif
}

// Return how many lanes of a mask are set.
FR_INLINE int count(vi mask) {
#if FR_AVX512
  return __builtin_popcount(_mm512_movepi32_mask((__m512i)mask));
#elif FR_NEON
  return -vaddvq_s32((int32x4_t)mask);
#elif FR_WIDTH == 8
  return __builtin_popcount(_mm256_movemask_ps((__m256)mask));
#else
  int set = 0;
  for (int i = 0; i < kWidth; ++i) set -= mask[i];
  return set;
#endif
}

// Not from <algorithm>: older machines could run a copy of a standard template compiled here.
FR_INLINE int64_t lesser(int64_t a, int64_t b) { return a < b ? a : b; }
FR_INLINE int32_t minimum_of(const int32_t* p, int64_t n) {
  int32_t least = p[0];
  for (int64_t i = 1; i < n; ++i) least = p[i] < least ? p[i] : least;
  return least;
}
FR_INLINE int32_t maximum_of(const int32_t* p, int64_t n) {
  int32_t most = p[0];
  for (int64_t i = 1; i < n; ++i) most = p[i] > most ? p[i] : most;
  return most;
}

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();
constexpr float kLog2E = 1.44269504088896340736f;
constexpr float kLn2 = 0.69314718055994530942f;
constexpr double kLn2Wide = 0.69314718055994530942;

// Relative error of the polynomials for 2^f: 2.6e-6 (DEGREE 4), 7.5e-8 (5), 1.9e-9 (6, exact at f = 0).
#if FR_AVX512
// Return 2^(x - floor(x)).
template <int DEGREE>
FR_INLINE vf exp2_fraction(vf x) {
  const vf f = (vf)_mm512_reduce_ps((__m512)x, 0x09);
  vf p;
  if constexpr (DEGREE == 4) {
    p = fill(0.01353414636105299f);
    p = p * f + fill(0.05201156064867973f);
    p = p * f + fill(0.24144265055656433f);
    p = p * f + fill(0.6930038928985596f);
    p = p * f + fill(1.0000026226043701f);
  } else if constexpr (DEGREE == 5) {
    p = fill(0.0018775766948238015f);
    p = p * f + fill(0.008989349007606506f);
    p = p * f + fill(0.055826302617788315f);
    p = p * f + fill(0.24015362560749054f);
    p = p * f + fill(0.6931530833244324f);
    p = p * f + fill(0.9999999403953552f);
  } else {
    p = fill(0.00021702266531066105f);
    p = p * f + fill(0.001243969309143722f);
    p = p * f + fill(0.009678839705884457f);
    p = p * f + fill(0.055483344942331314f);
    p = p * f + fill(0.24022983014583588f);
    p = p * f + fill(0.6931470036506653f);
    p = p * f + fill(1.0f);
  }
  return p;
}
#else
// Return 2^f for f in [-1/2, 1/2].
template <int DEGREE>
FR_INLINE vf exp2_near(vf f) {
  vf p = fill(0.00015345819701906294f);
  p = p * f + fill(0.0013399936724454165f);
  p = p * f + fill(0.009618489071726799f);
  p = p * f + fill(0.05550328642129898f);
  p = p * f + fill(0.24022646248340607f);
  p = p * f + fill(0.6931471824645996f);
  return p * f + fill(1.0f);
}
#endif

// Return 2^x, exactly 0 at -inf and NaN at NaN.
template <int DEGREE>
FR_INLINE vf exp2v(vf x) {
#if FR_AVX512
  return (vf)_mm512_scalef_ps((__m512)exp2_fraction<DEGREE>(x), (__m512)x);
#else
  const vf low = fill(-126.0f);
  const vf clamped = x > low ? x : low;
  const vf magic = fill(12582912.0f); // 1.5 * 2^23: adding it rounds to an integer kept in the low bits
  const vf shifted = clamped + magic;
  const vf scaled = (vf)((vi)exp2_near<DEGREE>(clamped - (shifted - magic)) + ((vi)shifted << 23));
  return x < low ? vf{} : (x == x ? scaled : x);
#endif
}

// Return the integer nearest x, or x itself from 2^22 on.
FR_INLINE vf whole(vf x) {
#if FR_AVX512
  return (vf)_mm512_roundscale_ps((__m512)x, 0);
#else
  const vf magic = fill(12582912.0f), bound = fill(4194304.0f);
  const vf rounded = (x + magic) - magic;
  return ((x < bound) & (x > -bound)) ? rounded : x;
#endif
}

// Return 2^(t - m) for a whole m (small enough that 2^(t - m) is finite): 2^t times an exact power of two, so that the
// rounding does not depend on m. Exactly 0 at t = -inf and if the result is below the normal numbers.
template <int DEGREE>
FR_INLINE vf exp2_below(vf t, vf m) {
#if FR_AVX512
  // Rounded down, t - m keeps the whole part that t has.
  const vf exponent = (vf)_mm512_sub_round_ps((__m512)t, (__m512)m, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
  return (vf)_mm512_scalef_ps((__m512)exp2_fraction<DEGREE>(t), (__m512)exponent);
#else
  const vf n = whole(t), exponent = n - m, magic = fill(12582912.0f);
  const vf power = (vf)((((vi)(exponent + magic)) << 23) + fill(127 << 23));
  return exponent < fill(-126.0f) ? vf{} : exp2_near<DEGREE>(t - n) * power;
#endif
}

// Return tanh as a ratio of polynomials, within a few units in the last place (Eigen's coefficients).
FR_INLINE vf tanhv(vf x) {
  const vf bound = fill(7.90531110763549805f);
  x = x > bound ? bound : x;
  x = x < -bound ? -bound : x;
  const vf y = x * x;
  vf p = fill(-2.76076847742355e-16f);
  p = p * y + fill(2.00018790482477e-13f);
  p = p * y + fill(-8.60467152213735e-11f);
  p = p * y + fill(5.12229709037114e-08f);
  p = p * y + fill(1.48572235717979e-05f);
  p = p * y + fill(6.37261928875436e-04f);
  p = p * y + fill(4.89352455891786e-03f);
  vf q = fill(1.19825839466702e-06f);
  q = q * y + fill(1.18534705686654e-04f);
  q = q * y + fill(2.26843463243900e-03f);
  q = q * y + fill(4.89352518554385e-03f);
  return x * p / q;
}

using bf16 = uint16_t;

FR_INLINE uint32_t bits_of(float x) {
  uint32_t u;
  std::memcpy(&u, &x, 4);
  return u;
}
FR_INLINE float float_of(uint32_t u) {
  float x;
  std::memcpy(&x, &u, 4);
  return x;
}
FR_INLINE float widen(bf16 x) { return float_of(static_cast<uint32_t>(x) << 16); }
// Round to nearest even; a NaN stays a NaN.
FR_INLINE bf16 narrow(float x) {
  const uint32_t u = bits_of(x);
  if ((u & 0x7fffffff) > 0x7f800000) return static_cast<bf16>(u >> 16 | 64);
  return static_cast<bf16>((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

#if FR_BF16 && FR_NEON
FR_INLINE bfloat16x8_t narrow_both(vf low, vf high) {
  return vcvtq_high_bf16_f32(vcvtq_low_bf16_f32((float32x4_t)low), (float32x4_t)high);
}
#endif

FR_INLINE void narrow_row(const float* from, bf16* to, int64_t n) {
  int64_t i = 0;
#if FR_BF16 && FR_NEON
  for (; i + 8 <= n; i += 8) vst1q_u16(to + i, vreinterpretq_u16_bf16(narrow_both(load(from + i), load(from + i + 4))));
#elif FR_BF16
  for (; i + 16 <= n; i += 16) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + i), (__m256i)_mm512_cvtneps_pbh(_mm512_loadu_ps(from + i)));
  }
#endif
  for (; i < n; ++i) to[i] = narrow(from[i]);
}

#if FR_BF16
// Round pairs to bf16, the even one in the lower half of a lane.
FR_INLINE vi narrow_pairs(vf even, vf odd) {
#if FR_NEON
  const uint16x8_t both = vreinterpretq_u16_bf16(narrow_both(even, odd));
  return (vi)vzip1q_u16(both, vextq_u16(both, both, 4));
#else
  const __m512i interleave = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22,
                                              6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
  return (vi)_mm512_permutexvar_epi16(interleave, (__m512i)_mm512_cvtne2ps_pbh((__m512)odd, (__m512)even));
#endif
}
#endif

FR_INLINE void copy_row(const bf16* from, bf16* to, int64_t n) {
  int64_t i = 0; // a call to memcpy costs more than such a row
  for (; i + 32 <= n; i += 32) __builtin_memcpy(to + i, from + i, 64);
  for (; i + 8 <= n; i += 8) __builtin_memcpy(to + i, from + i, 16);
  for (; i < n; ++i) to[i] = from[i];
}

// Copy n values of a row of `source` (float or bf16) into TERMS operand rows `term_stride` apart, then zeros to padded.
template <typename T, int TERMS>
FR_INLINE void load_row(const void* source, bool is_bf16, int64_t n, int64_t padded, T* out, int64_t term_stride) {
  if constexpr (std::is_same_v<T, float>) {
    if (is_bf16) {
      const bf16* row = static_cast<const bf16*>(source);
      for (int64_t i = 0; i < n; ++i) out[i] = widen(row[i]);
    } else {
      std::memcpy(out, source, n * sizeof(float));
    }
  } else if (is_bf16) {
    copy_row(static_cast<const bf16*>(source), out, n);
    if constexpr (TERMS == 2) std::memset(out + term_stride, 0, n * sizeof(bf16));
  } else {
    const float* row = static_cast<const float*>(source);
    narrow_row(row, out, n);
    if constexpr (TERMS == 2) {
      for (int64_t i = 0; i < n; ++i) out[term_stride + i] = narrow(row[i] - widen(out[i]));
    }
  }
  if (n == padded) return;
  for (int term = 0; term < TERMS; ++term) std::memset(out + term * term_stride + n, 0, (padded - n) * sizeof(T));
}

FR_INLINE const void* row_of(const Source& s, int64_t token, int64_t head) {
  const int64_t offset = token * s.token_stride + head * s.head_stride;
  return static_cast<const char*>(s.data) + offset * (s.bf16 ? 2 : 4);
}

// in [16, 16] of 4-byte items with rows in_stride apart -> out transposed.
FR_INLINE void transpose16(const float* in, int64_t in_stride, float* out, int64_t out_stride) {
#if FR_AVX512
  __m512 r[16], t[16];
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) r[i] = _mm512_loadu_ps(in + i * in_stride);
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    t[2 * i] = _mm512_unpacklo_ps(r[2 * i], r[2 * i + 1]);
    t[2 * i + 1] = _mm512_unpackhi_ps(r[2 * i], r[2 * i + 1]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const __m512d a = _mm512_castps_pd(t[4 * i]), b = _mm512_castps_pd(t[4 * i + 1]);
    const __m512d c = _mm512_castps_pd(t[4 * i + 2]), d = _mm512_castps_pd(t[4 * i + 3]);
    r[4 * i] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, c));
    r[4 * i + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, c));
    r[4 * i + 2] = _mm512_castpd_ps(_mm512_unpacklo_pd(b, d));
    r[4 * i + 3] = _mm512_castpd_ps(_mm512_unpackhi_pd(b, d));
  }
  // r[4i + c] holds column c of each 128-bit lane for rows 4i..4i+3.
#pragma GCC unroll 4
  for (int c = 0; c < 4; ++c) {
    const __m512 a = _mm512_shuffle_f32x4(r[c], r[4 + c], 0x88), b = _mm512_shuffle_f32x4(r[8 + c], r[12 + c], 0x88);
    const __m512 d = _mm512_shuffle_f32x4(r[c], r[4 + c], 0xdd), e = _mm512_shuffle_f32x4(r[8 + c], r[12 + c], 0xdd);
    _mm512_storeu_ps(out + c * out_stride, _mm512_shuffle_f32x4(a, b, 0x88));
    _mm512_storeu_ps(out + (c + 4) * out_stride, _mm512_shuffle_f32x4(d, e, 0x88));
    _mm512_storeu_ps(out + (c + 8) * out_stride, _mm512_shuffle_f32x4(a, b, 0xdd));
    _mm512_storeu_ps(out + (c + 12) * out_stride, _mm512_shuffle_f32x4(d, e, 0xdd));
  }
#elif FR_WIDTH == 8
  for (int i = 0; i < 16; i += 8) {
    for (int j = 0; j < 16; j += 8) {
      const float* from = in + i * in_stride + j;
      float* to = out + j * out_stride + i;
      __m256 r[8], t[8];
#pragma GCC unroll 8
      for (int k = 0; k < 8; ++k) r[k] = _mm256_loadu_ps(from + k * in_stride);
#pragma GCC unroll 4
      for (int k = 0; k < 8; k += 2) {
        t[k] = _mm256_unpacklo_ps(r[k], r[k + 1]);
        t[k + 1] = _mm256_unpackhi_ps(r[k], r[k + 1]);
      }
#pragma GCC unroll 2
      for (int k = 0; k < 8; k += 4) { // r[k + c] holds columns c and c + 4 of rows k..k+3
        r[k] = _mm256_shuffle_ps(t[k], t[k + 2], 0x44);
        r[k + 1] = _mm256_shuffle_ps(t[k], t[k + 2], 0xee);
        r[k + 2] = _mm256_shuffle_ps(t[k + 1], t[k + 3], 0x44);
        r[k + 3] = _mm256_shuffle_ps(t[k + 1], t[k + 3], 0xee);
      }
#pragma GCC unroll 4
      for (int c = 0; c < 4; ++c) {
        _mm256_storeu_ps(to + c * out_stride, _mm256_permute2f128_ps(r[c], r[c + 4], 0x20));
        _mm256_storeu_ps(to + (c + 4) * out_stride, _mm256_permute2f128_ps(r[c], r[c + 4], 0x31));
      }
    }
  }
#elif FR_NEON
  for (int i = 0; i < 16; i += 4) {
    for (int j = 0; j < 16; j += 4) {
      const float* from = in + i * in_stride + j;
      const float32x4_t a = vld1q_f32(from), b = vld1q_f32(from + in_stride);
      const float32x4_t c = vld1q_f32(from + 2 * in_stride), d = vld1q_f32(from + 3 * in_stride);
      const float64x2_t e = vreinterpretq_f64_f32(vtrn1q_f32(a, b)), f = vreinterpretq_f64_f32(vtrn2q_f32(a, b));
      const float64x2_t g = vreinterpretq_f64_f32(vtrn1q_f32(c, d)), h = vreinterpretq_f64_f32(vtrn2q_f32(c, d));
      float* to = out + j * out_stride + i;
      vst1q_f32(to, vreinterpretq_f32_f64(vtrn1q_f64(e, g)));
      vst1q_f32(to + out_stride, vreinterpretq_f32_f64(vtrn1q_f64(f, h)));
      vst1q_f32(to + 2 * out_stride, vreinterpretq_f32_f64(vtrn2q_f64(e, g)));
      vst1q_f32(to + 3 * out_stride, vreinterpretq_f32_f64(vtrn2q_f64(f, h)));
    }
  }
#else
  for (int i = 0; i < 16; ++i) {
    for (int j = 0; j < 16; ++j) out[j * out_stride + i] = in[i * in_stride + j];
  }
#endif
}

// in [32][stride >= width] -> the B operand of a product, width a multiple of 32: float [width][32], or bf16 in pairs
// [width / 2][32][2] (a pair is one 4-byte item, so both are transposes of 4-byte items).
template <typename T>
FR_INLINE void pack_strip(const T* in, int64_t stride, int64_t width, T* out) {
  constexpr int64_t per = 4 / sizeof(T);
  const float* from = reinterpret_cast<const float*>(in);
  float* to = reinterpret_cast<float*>(out);
  for (int64_t column = 0; column < width / per; column += 16) {
    for (int64_t half = 0; half < 2; ++half) {
      transpose16(from + half * 16 * (stride / per) + column, stride / per, to + column * kStrip + half * 16, kStrip);
    }
  }
}

// in [32][width] -> out [width][32], width a multiple of 32.
FR_INLINE void transpose_group(const float* in, int64_t width, float* out) { pack_strip<float>(in, width, width, out); }
FR_INLINE void transpose_group(const bf16* in, int64_t width, bf16* out) {
  // Rows 2i and 2i + 1 are joined into pairs, a pair per column, and the pairs transposed as 4-byte items.
  alignas(64) uint32_t pairs[16][32];
  for (int64_t column = 0; column < width; column += 32) {
    for (int i = 0; i < 16; ++i) {
      const bf16* even = in + 2 * i * width + column;
      const bf16* odd = even + width;
      for (int j = 0; j < 32; ++j) pairs[i][j] = static_cast<uint32_t>(odd[j]) << 16 | even[j];
    }
    for (int half = 0; half < 2; ++half) {
      transpose16(reinterpret_cast<const float*>(pairs[0]) + half * 16, 32,
                  reinterpret_cast<float*>(out + (column + half * 16) * 32), 16);
    }
  }
}
