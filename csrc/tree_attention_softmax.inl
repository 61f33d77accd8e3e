// Online softmax over a strip of scores [key][32 lanes]: mask, maximum, reference, weights (see _state.inl).

// Set the scores of keys that the lanes do not see to -inf; `scores` are of one chunk.
FR_INLINE void mask_chunk(const AttentionArgs& a, float* scores, int64_t chunk, const int32_t* query_node,
                          const int32_t* position) {
  for (int v = 0; v < kVectors; ++v) {
    const vi at = load(query_node + v * kWidth);
    const vi oldest = load(position + v * kWidth) - fill(static_cast<int32_t>(a.window > 0 ? a.window - 1 : 0));
    for (int64_t j = 0; j < kStrip; ++j) {
      const int64_t slot = chunk * kStrip + j;
      float* row = scores + j * kStrip + v * kWidth;
      vi seen = (fill(a.slot_birth[slot]) <= at) & (at < fill(a.slot_end[slot]));
      if (a.window > 0 && a.slot_key[slot] >= 0) seen &= fill(a.key_positions[a.slot_key[slot]]) >= oldest;
      store(row, seen ? load(row) : fill(kMinusInfinity));
    }
  }
}

// Return scale * s, soft-capped if there is a cap.
FR_INLINE void transform_scores(float* scores, int64_t count, float scale, float softcap) {
  for (int64_t i = 0; i < count; i += kWidth) {
    vf s = load(scores + i) * fill(scale);
    if (softcap > 0) s = tanhv(s * fill(1 / softcap)) * fill(softcap);
    store(scores + i, s);
  }
}

// Add slope * (key position - query position) to the scores of `rows` slots from `start` on.
FR_INLINE void add_slopes(const AttentionArgs& a, float* scores, int64_t start, int64_t rows, const float* slope,
                          const int32_t* position) {
  for (int v = 0; v < kVectors; ++v) {
    const vf by = load(slope + v * kWidth);
    const vi from = load(position + v * kWidth);
    for (int64_t j = 0; j < rows; ++j) {
      const int32_t key = a.slot_key[start + j];
      if (key < 0) continue; // an empty slot, which no row sees
      float* at = scores + j * kStrip + v * kWidth;
      store(at, load(at) + by * __builtin_convertvector(fill(a.key_positions[key]) - from, vf));
    }
  }
}

// Set weights to 2^(factor * s - m) as operands, for whole m, and add their sums to `total`, pair by pair of slots.
// `rows` is a multiple of 32. Products in the queue run meanwhile.
template <typename T, int TERMS, bool LSE>
FR_INLINE void exponentiate(float* scores, T* weights, int64_t term_stride, int64_t rows, float factor,
                            const float* maximum, float* total, Queue<T, TERMS, TERMS>& queue) {
  if constexpr (std::is_same_v<T, float>) {
    for (int v = 0; v < kVectors; ++v) {
      const vf m = load(maximum + v * kWidth);
      vf sum = load(total + v * kWidth);
      for (int64_t r = 0; r < rows; ++r) {
        float* at = scores + r * kStrip + v * kWidth;
        const vf p = exp2_below<6>(load(at) * fill(factor), m);
        sum += p;
        store(at, p);
      }
      store(total + v * kWidth, sum);
      if constexpr (LSE) store(total + kStrip + v * kWidth, sum);
    }
  } else {
#if FR_BF16
    constexpr int DEGREE = TERMS == 2 ? 5 : 4;
    const vf spread = fill(factor);
    for (int64_t lane = 0; lane < kStrip; lane += 2 * kWidth) { // once with vectors of 16
      vf m[2], sum[2], mass[2];
#pragma GCC unroll 2
      for (int i = 0; i < 2; ++i) {
        const int64_t at = lane + i * kWidth;
        m[i] = load(maximum + at);
        sum[i] = load(total + at);
        mass[i] = load(total + kStrip + at);
      }
      for (int64_t r = 0; r < rows; r += 2) {
        if (r % kRowsAStep == 0) queue.step();
        vf even[2], odd[2];
#pragma GCC unroll 2
        for (int i = 0; i < 2; ++i) { // pairs take the place of the scores of their lanes in earlier rows
          const float* at = scores + r * kStrip + lane + i * kWidth;
          even[i] = exp2_below<DEGREE>(load(at) * spread, m[i]);
          odd[i] = exp2_below<DEGREE>(load(at + kStrip) * spread, m[i]);
        }
#pragma GCC unroll 2
        for (int i = 0; i < 2; ++i) {
          T* out = weights + r * kStrip + 2 * (lane + i * kWidth);
          const vi high = narrow_pairs(even[i], odd[i]);
          *reinterpret_cast<vi_u*>(out) = high;
          const vf even_high = (vf)(high << 16), odd_high = (vf)(high & fill(static_cast<int32_t>(0xffff0000)));
          sum[i] += even_high + odd_high;
          if constexpr (TERMS == 2) {
            const vi low = narrow_pairs(even[i] - even_high, odd[i] - odd_high);
            *reinterpret_cast<vi_u*>(out + term_stride) = low;
            sum[i] += (vf)(low << 16) + (vf)(low & fill(static_cast<int32_t>(0xffff0000)));
          }
          if constexpr (LSE) mass[i] += even[i] + odd[i];
        }
      }
#pragma GCC unroll 2
      for (int i = 0; i < 2; ++i) {
        const int64_t at = lane + i * kWidth;
        store(total + at, sum[i]);
        if constexpr (LSE) store(total + kStrip + at, mass[i]);
      }
    }
#endif
  }
}

// Return the maximum score of each lane; `rows` is a multiple of 32.
FR_INLINE void greatest_scores(const float* scores, int64_t rows, vf* best) {
#pragma GCC unroll 8
  for (int v = 0; v < kVectors; ++v) best[v] = fill(kMinusInfinity);
  for (int64_t r = 0; r < rows; r += 4) { // four at a time, since one chain of maxima would stall
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      const float* at = scores + r * kStrip + v * kWidth;
      const vf low = larger(load(at), load(at + kStrip)), high = larger(load(at + 2 * kStrip), load(at + 3 * kStrip));
      best[v] = larger(best[v], larger(low, high));
    }
  }
}

// Raise the running reference of the lanes that need it, and rescale totals and sums (null while empty).
FR_INLINE void raise_maximum(const vf* best, float factor, float* maximum, float* total, float* outer_total,
                             float* sums, float* outer_sums, int64_t columns) {
  vf raised[kVectors], scaling[kVectors];
  vi raise{};
#pragma GCC unroll 8
  for (int v = 0; v < kVectors; ++v) {
    raised[v] = whole(best[v] * fill(factor));
    raise |= raised[v] > load(maximum + v * kWidth) + fill(kSlack);
  }
  if (!any(raise)) return;
#pragma GCC unroll 8
  for (int v = 0; v < kVectors; ++v) {
    const vf old = load(maximum + v * kWidth);
    raised[v] = larger(old, raised[v]);
    // A lane that has seen nothing keeps -inf; compute with 0 instead, so that no inf - inf arises.
    scaling[v] = exp2v<6>(old - (raised[v] == fill(kMinusInfinity) ? vf{} : raised[v]));
    store(maximum + v * kWidth, raised[v]);
    for (int64_t at = v * kWidth; at < kTotals; at += kStrip) {
      store(total + at, load(total + at) * scaling[v]);
      store(outer_total + at, load(outer_total + at) * scaling[v]);
    }
  }
  float* const arrays[2] = {sums, outer_sums};
  for (float* array : arrays) {
    for (int64_t c = 0; array != nullptr && c < columns; ++c) {
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) {
        float* at = array + c * kStrip + v * kWidth;
        store(at, load(at) * scaling[v]);
      }
    }
  }
}
