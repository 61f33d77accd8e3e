// The work of a transformer on each token between matrix products: root-mean-square norm, rotary embedding, gated
// activation. Each reads its input once and writes the type that the next product takes.

// Load the first n of kWidth floats, then zeros.
FR_INLINE vf load_some(const float* p, int64_t n) {
  if (n >= kWidth) return load(p);
  alignas(64) float part[kWidth] = {};
  for (int64_t i = 0; i < n; ++i) part[i] = p[i];
  return load(part);
}
FR_INLINE void store_some(float* p, vf x, int64_t n) {
  if (n >= kWidth) return store(p, x);
  alignas(64) float part[kWidth];
  store(part, x);
  for (int64_t i = 0; i < n; ++i) p[i] = part[i];
}
FR_INLINE void store_some(bf16* p, vf x, int64_t n) {
#if FR_BF16 && FR_NEON
  if (n >= kWidth) return vst1_u16(p, vreinterpret_u16_bf16(vcvt_bf16_f32((float32x4_t)x)));
#elif FR_BF16
  if (n >= kWidth) return _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), (__m256i)_mm512_cvtneps_pbh((__m512)x));
#endif
  alignas(64) float part[kWidth];
  store(part, x);
  narrow_row(part, p, n < kWidth ? n : kWidth);
}
FR_INLINE float sum_of(vf x) {
  float sum = 0.0f;
  for (int i = 0; i < kWidth; ++i) sum += x[i];
  return sum;
}

template <typename O>
FR_INLINE void norm_rows(const NormArgs& a, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    const float* x = a.input + row * a.input_stride;
    O* out = static_cast<O*>(a.out) + row * a.out_stride;
    vf sums[4] = {};
    int64_t i = 0;
    for (; i + 4 * kWidth <= a.size; i += 4 * kWidth) {
#pragma GCC unroll 4
      for (int k = 0; k < 4; ++k) {
        const vf v = load(x + i + k * kWidth);
        sums[k] += v * v;
      }
    }
    for (; i < a.size; i += kWidth) {
      const vf v = load_some(x + i, a.size - i);
      sums[0] += v * v;
    }
    const float mean = sum_of((sums[0] + sums[1]) + (sums[2] + sums[3])) / static_cast<float>(a.size);
    const vf factor = fill(1.0f / __builtin_sqrtf(mean + a.epsilon));
    for (int64_t j = 0; j < a.size; j += kWidth) {
      const int64_t n = a.size - j;
      store_some(out + j, load_some(x + j, n) * factor * load_some(a.weight + j, n), n);
    }
  }
}

void rms_norm(const NormArgs& a, int64_t begin, int64_t end) {
  a.out_bf16 ? norm_rows<bf16>(a, begin, end) : norm_rows<float>(a, begin, end);
}

// Return sums of each two lanes that are STRIDE apart in the first one's place, and differences in the second's.
template <int STRIDE, size_t... LANE>
FR_INLINE vf butterfly(vf x, std::index_sequence<LANE...>) {
  const vf sign = {((LANE & STRIDE) != 0 ? -1.0f : 1.0f)...};
#ifdef __clang__
  return __builtin_shufflevector(x, x, (LANE ^ STRIDE)...) + sign * x;
#else
  return __builtin_shuffle(x, vi{static_cast<int32_t>(LANE ^ STRIDE)...}) + sign * x;
#endif
}

template <int STRIDE>
FR_INLINE vf butterflies(vf x) {
  if constexpr (STRIDE < kWidth) {
    return butterflies<2 * STRIDE>(butterfly<STRIDE>(x, std::make_index_sequence<kWidth>()));
  } else {
    return x;
  }
}

// Multiply a block of VECTORS vectors by a Hadamard matrix, in registers.
template <int VECTORS>
FR_INLINE void hadamard_block_of(float* x, vf scale) {
  vf v[VECTORS];
#pragma GCC unroll 16
  for (int i = 0; i < VECTORS; ++i) v[i] = load(x + i * kWidth) * scale;
#pragma GCC unroll 4
  for (int stride = 1; stride < VECTORS; stride *= 2) {
#pragma GCC unroll 16
    for (int i = 0; i < VECTORS; ++i) {
      if ((i & stride) != 0) continue;
      const vf low = v[i], high = v[i + stride];
      v[i] = low + high;
      v[i + stride] = low - high;
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < VECTORS; ++i) store(x + i * kWidth, butterflies<1>(v[i]));
}

// Multiply each block of a head's values by a Hadamard matrix over the square root of its size (Sylvester's form).
FR_INLINE void hadamard_row(float* x, int64_t size) {
  const int64_t block = hadamard_block(size);
  const float scale = 1.0f / __builtin_sqrtf(static_cast<float>(block));
  int64_t done = 1; // the size of the blocks that are multiplied
  if (block < kWidth) {
    for (int64_t i = 0; i < size; ++i) x[i] *= scale;
  } else {
    const int64_t vectors = block / kWidth;
    done = vectors < 8 ? block : 8 * kWidth;
    for (int64_t i = 0; i < size; i += done) {
      switch (vectors) {
        case 1: hadamard_block_of<1>(x + i, fill(scale)); break;
        case 2: hadamard_block_of<2>(x + i, fill(scale)); break;
        case 4: hadamard_block_of<4>(x + i, fill(scale)); break;
        default: hadamard_block_of<8>(x + i, fill(scale));
      }
    }
  }
  for (; done < block; done *= 2) {
    for (int64_t first = 0; first < size; first += 2 * done) {
      for (int64_t i = first; i < first + done; i += kWidth) {
        const int64_t n = first + done - i;
        const vf low = load_some(x + i, n), high = load_some(x + i + done, n);
        store_some(x + i, low + high, n);
        store_some(x + i + done, low - high, n);
      }
    }
  }
}

template <typename O>
FR_INLINE void rotate_values(const RotaryArgs& a, int64_t token, int64_t head, O* out) {
  const float* x = a.input + token * a.token_stride + head * a.head_stride;
  const int64_t half = a.rotated / 2;
  for (int64_t i = 0; i < half; i += kWidth) {
    const int64_t n = half - i;
    const float* cosine = a.cosine + token * a.angle_stride + i;
    const float* sine = a.sine + token * a.angle_stride + i;
    const vf low = load_some(x + i, n), high = load_some(x + half + i, n);
    store_some(out + i, low * load_some(cosine, n) - high * load_some(sine, n), n);
    store_some(out + half + i, high * load_some(cosine + half, n) + low * load_some(sine + half, n), n);
  }
  for (int64_t i = a.rotated; i < a.size; i += kWidth) store_some(out + i, load_some(x + i, a.size - i), a.size - i);
}

template <typename O>
FR_INLINE void rotate_row(const RotaryArgs& a, int64_t token, int64_t head) {
  O* out = static_cast<O*>(a.out) + (token * a.heads + head) * a.size;
  if (!a.hadamard || hadamard_block(a.size) == 1) return rotate_values(a, token, head, out);
  alignas(64) float row[kMostHadamard];
  rotate_values(a, token, head, row);
  hadamard_row(row, a.size);
  for (int64_t i = 0; i < a.size; i += kWidth) store_some(out + i, load_some(row + i, a.size - i), a.size - i);
}

void rotary(const RotaryArgs& a, int64_t begin, int64_t end) {
  for (int64_t token = begin; token < end; ++token) {
    for (int64_t head = 0; head < a.heads; ++head) {
      if (a.out_bf16) {
        rotate_row<bf16>(a, token, head);
      } else {
        rotate_row<float>(a, token, head);
      }
    }
  }
}

// x / (1 + e^-z): SiLU has z = x; GELU's tanh form is the same with z = 2 sqrt(2 / pi) (x + 0.044715 x^3), since
// (1 + tanh(z / 2)) / 2 = 1 / (1 + e^-z), and stays exact when 1 + tanh would cancel.
FR_INLINE vf activate(Activation kind, vf x) {
  const vf z = kind == Activation::silu ? x : fill(1.5957691216057308f) * (x + fill(0.044715f) * x * x * x);
  const vf top = fill(126.0f); // largest power of the portable exponential
  const vf power = z * fill(-kLog2E);
  return x / (fill(1.0f) + exp2v<6>(power < top ? power : top));
}

template <typename O, Activation KIND>
FR_INLINE void gate_row(const GateArgs& a, int64_t row) {
  const float* gate = a.gate + row * a.gate_stride;
  const float* up = a.up + row * a.up_stride;
  O* out = static_cast<O*>(a.out) + row * a.size;
  for (int64_t i = 0; i < a.size; i += kWidth) {
    const int64_t n = a.size - i;
    store_some(out + i, activate(KIND, load_some(gate + i, n)) * load_some(up + i, n), n);
  }
}

void gate(const GateArgs& a, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    if (a.kind == Activation::silu) {
      a.out_bf16 ? gate_row<bf16, Activation::silu>(a, row) : gate_row<float, Activation::silu>(a, row);
    } else {
      a.out_bf16 ? gate_row<bf16, Activation::gelu_tanh>(a, row) : gate_row<float, Activation::gelu_tanh>(a, row);
    }
  }
}
