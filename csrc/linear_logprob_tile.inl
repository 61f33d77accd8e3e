// Score a block of rows (several strips) against a slice of the vocabulary, 32 tokens at a time, by online log-sum-exp.
//
// The logits of 32 tokens x 32 rows take 4 KB and are consumed in cache. A lane keeps the running maximum m,
// l = sum of e^(x - m) and t = sum of x e^(x - m); then logsumexp = m + log l and entropy = logsumexp - t / l. The
// rounding error of adding 32 tokens to l and t is kept and added with the next ones (Kahan's sums): over a whole
// vocabulary it would reach several units in the last place.

template <typename T, int TW, int TH>
struct Logits {
  T* hidden; // [TH][strips] packed [padded_size][32]
  T* staging; // [max(TW, TH)][32][padded_size]
  float* tile; // [32 tokens][32]
  LogprobState* state; // [strips]

  static int64_t layout(const LogprobArgs& a, char* base, Logits* out) {
    const int64_t strips = a.row_block / kStrip;
    int64_t at = 0;
    const auto take = [&](auto*& pointer, int64_t count) {
      using Item = std::remove_reference_t<decltype(*pointer)>;
      if (base != nullptr) pointer = reinterpret_cast<Item*>(base + at);
      at = round_up(at + count * static_cast<int64_t>(sizeof(Item)), 64);
    };
    Logits none;
    Logits& t = out != nullptr ? *out : none;
    take(t.hidden, TH * strips * a.padded_size * kStrip);
    take(t.staging, (TW > TH ? TW : TH) * kStrip * a.padded_size);
    take(t.tile, kStrip * kStrip);
    take(t.state, strips);
    return at;
  }
};

// Copy up to 32 rows of a weight of blocks as operand rows: those of strip `first` / 32 in order, or `ids`.
template <typename T, int TW>
FR_INLINE void stage_blocks(const LogprobArgs& a, int64_t first, const int64_t* ids, int64_t count, T* out, int64_t term) {
  alignas(64) float rows[kRecord * kStrip];
  for (int64_t k = 0; k < a.padded_size; k += kRecord) {
    for (int64_t i = 0; i < count; ++i) {
      const int64_t id = ids != nullptr ? ids[i] : first + i;
      if (ids != nullptr || i == 0) unpack_block(a.weight_blocks, id / kStrip, k, rows, kRecord);
      load_row<T, TW>(rows + id % kStrip * kRecord, false, kRecord, kRecord, out + i * a.padded_size + k, term);
    }
  }
}

// Return weight rows `ids` (or first.. in order if null) as the walked operand, copied only if necessary.
template <typename T, int TW, int TH>
FR_INLINE Operand<T, TW> weight_rows(const LogprobArgs& a, Logits<T, TW, TH>& t, int64_t first, const int64_t* ids,
                                     int64_t count, int64_t* stride) {
  constexpr bool bf16_operand = !std::is_same_v<T, float>;
  if (a.weight_blocks.count == 0 && ids == nullptr && count == kStrip && TW == 1 && a.weight.bf16 == bf16_operand && a.size == a.padded_size) {
    *stride = a.weight.token_stride;
    return {static_cast<const T*>(row_of(a.weight, first, 0)), 0};
  }
  const int64_t term = kStrip * a.padded_size;
  const bool blocks = a.weight_blocks.count > 0;
  if (blocks) stage_blocks<T, TW>(a, first, ids, count, t.staging, term);
  for (int64_t i = blocks ? count : 0; i < kStrip; ++i) {
    T* row = t.staging + i * a.padded_size;
    if (i < count) {
      load_row<T, TW>(row_of(a.weight, ids != nullptr ? ids[i] : first + i, 0), a.weight.bf16, a.size, a.padded_size,
                      row, term);
    } else {
      for (int k = 0; k < TW; ++k) std::memset(row + k * term, 0, a.padded_size * sizeof(T));
    }
  }
  *stride = a.padded_size;
  return {t.staging, term};
}

FR_INLINE void transform_logits(const LogprobArgs& a, float* tile, int64_t first, const int64_t* ids, int64_t count) {
  if (a.bias != nullptr) {
    for (int64_t r = 0; r < count; ++r) {
      const vf bias = fill(a.bias[ids != nullptr ? ids[r] : first + r]);
      for (int v = 0; v < kVectors; ++v) {
        float* at = tile + r * kStrip + v * kWidth;
        store(at, load(at) + bias);
      }
    }
  }
  if (a.scale != 1.0f || a.softcap > 0) transform_scores(tile, count * kStrip, a.scale, a.softcap);
}

// sum += x, with the rounding error in `lost`.
FR_INLINE void add_exactly(vf& sum, vf& lost, vf x) {
  const vf share = x - lost, grown = sum + share;
  lost = (grown - sum) - share;
  sum = grown;
}

template <int DEGREE>
FR_INLINE void absorb(const float* tile, int64_t first, int64_t count, LogprobState& s) {
  for (int v = 0; v < kVectors; ++v) {
    const int at = v * kWidth;
    vf best = load(tile + at);
    for (int64_t r = 1; r < count; ++r) best = larger(best, load(tile + r * kStrip + at));
    const vf known = load(s.best + at);
    if (any(best > known)) {
      // Backwards, so that the lowest token of a tie remains.
      vi winner = load(s.argmax + at);
      for (int64_t r = count - 1; r >= 0; --r) {
        const vi here = (load(tile + r * kStrip + at) == best) & (best > known);
        winner = here ? fill(static_cast<int32_t>(first + r)) : winner;
      }
      *reinterpret_cast<vi_u*>(s.argmax + at) = winner;
      store(s.best + at, larger(known, best));
    }
    vf m = load(s.maximum + at), l = load(s.total + at), t = load(s.weighted + at);
    vf l_lost = load(s.total_lost + at), t_lost = load(s.weighted_lost + at);
    // Lanes that need no other reference keep theirs: a row's rounding must not depend on its neighbours.
    const vi raises = best * fill(kLog2E) > m + fill(kSlack);
    if (any(raises)) {
      const vf raised = raises ? best * fill(kLog2E) : m;
      const vf scaling = exp2v<6>(m - raised);
      l *= scaling;
      t *= scaling;
      l_lost *= scaling;
      t_lost *= scaling;
      m = raised;
      store(s.maximum + at, m);
    }
    const vf base = m == fill(kMinusInfinity) ? vf{} : m;
    vf l1{}, t1{};
#pragma GCC unroll 4
    for (int64_t r = 0; r < count; ++r) {
      const vf x = load(tile + r * kStrip + at);
      const vf p = exp2v<DEGREE>(x * fill(kLog2E) - base);
      l1 += p;
      t1 += p * x;
    }
    add_exactly(l, l_lost, l1);
    add_exactly(t, t_lost, t1);
    store(s.total + at, l);
    store(s.weighted + at, t);
    store(s.total_lost + at, l_lost);
    store(s.weighted_lost + at, t_lost);
    const vi offset = load(s.target + at) - fill(static_cast<int32_t>(first));
    if (any((offset >= fill(0)) & (offset < fill(static_cast<int32_t>(count))))) {
      for (int lane = at; lane < at + kWidth; ++lane) {
        const int64_t r = s.target[lane] - first;
        if (r >= 0 && r < count) s.picked[lane] = tile[r * kStrip + lane];
      }
    }
  }
}

template <typename T, int TW, int TH>
void logprob(const LogprobArgs& a, int64_t block, int64_t slice, void* workspace) {
  Logits<T, TW, TH> t;
  Logits<T, TW, TH>::layout(a, static_cast<char*>(workspace), &t);
  const int64_t begin = block * a.row_block, rows = begin + a.row_block < a.rows ? a.row_block : a.rows - begin;
  const int64_t strips = (rows + kStrip - 1) / kStrip;
  const int64_t term = a.row_block / kStrip * a.padded_size * kStrip, staged_term = kStrip * a.padded_size;
  for (int64_t strip = 0; strip < strips; ++strip) {
    LogprobState& s = t.state[strip];
    std::memset(&s, 0, sizeof(s));
    for (int64_t lane = 0; lane < kStrip; ++lane) {
      const int64_t row = strip * kStrip + lane;
      T* staged = t.staging + lane * a.padded_size;
      s.best[lane] = s.maximum[lane] = kMinusInfinity;
      s.target[lane] = row < rows ? static_cast<int32_t>(a.target[begin + row]) : -1;
      if (row < rows) {
        load_row<T, TH>(row_of(a.hidden, begin + row, 0), a.hidden.bf16, a.size, a.padded_size, staged, staged_term);
      } else {
        for (int k = 0; k < TH; ++k) std::memset(staged + k * staged_term, 0, a.padded_size * sizeof(T));
      }
    }
    for (int k = 0; k < TH; ++k) {
      pack_strip<T>(t.staging + k * staged_term, a.padded_size, a.padded_size,
                    t.hidden + k * term + strip * a.padded_size * kStrip);
    }
  }
  const int64_t low = slice * a.slice_size;
  const int64_t high = low + a.slice_size < a.vocabulary ? low + a.slice_size : a.vocabulary;
  int64_t stride = 0;
  for (int64_t first = low; first < high; first += kStrip) {
    const int64_t count = first + kStrip < high ? kStrip : high - first;
    const Operand<T, TW> weight = weight_rows<T, TW, TH>(a, t, first, nullptr, count, &stride);
    for (int64_t strip = 0; strip < strips; ++strip) {
      gemm<T, TW, TH, kBlock>(weight, stride, kStrip, {t.hidden + strip * a.padded_size * kStrip, term}, t.tile,
                              kStrip, a.padded_size, false);
      transform_logits(a, t.tile, first, nullptr, count);
      // Products of bf16 have larger errors than the shorter polynomial.
      absorb<std::is_same_v<T, float> || TH == 2 ? 6 : 5>(t.tile, first, count, t.state[strip]);
    }
  }
  std::memcpy(a.states + (slice * a.blocks + block) * (a.row_block / kStrip), t.state, strips * sizeof(LogprobState));
  if (slice > 0) return;
  for (int64_t first = 0; first < a.label_count; first += kStrip) {
    const int64_t count = first + kStrip < a.label_count ? kStrip : a.label_count - first;
    const Operand<T, TW> weight = weight_rows<T, TW, TH>(a, t, 0, a.labels + first, count, &stride);
    for (int64_t strip = 0; strip < strips; ++strip) {
      gemm<T, TW, TH, kBlock>(weight, stride, kStrip, {t.hidden + strip * a.padded_size * kStrip, term}, t.tile,
                              kStrip, a.padded_size, false);
      transform_logits(a, t.tile, 0, a.labels + first, count);
      for (int64_t lane = 0; lane < kStrip && strip * kStrip + lane < rows; ++lane) {
        float* out = a.label_logits + (begin + strip * kStrip + lane) * a.label_count + first;
        for (int64_t r = 0; r < count; ++r) out[r] = t.tile[r * kStrip + lane];
      }
    }
  }
}

template <typename T, int TW, int TH>
int64_t logprob_workspace(const LogprobArgs& a) {
  return Logits<T, TW, TH>::layout(a, nullptr, nullptr);
}
