// One tile of queries against the key blocks of its schedule, by online softmax over strips of 32 query rows.
//
// Row r of the tile is token r / groups, head r % groups of its key head. Everything is held transposed: scores
// [key][32 lanes], sums [value column][32 lanes]. With m the running maximum of a lane (in log2 units), l the sum of
// 2^(s - m) and O the sum of 2^(s - m) v, a block only raises m where its maximum exceeds m by kSlack, so that O is
// seldom rescaled; the result O / l is the same, and 2^kSlack is far from overflow.

constexpr float kSlack = 8.0f;
constexpr int64_t kMaxStrips = 64; // of a tile

template <typename T, int TERMS>
struct Tile {
  int64_t strips;
  T* queries; // [TERMS][strips] packed [padded_size][32]
  T* staging; // [TERMS][32][padded_size]
  float* scores; // two of [key_block][32]
  T* weights; // two of [TERMS] packed [key_block][32], of split operands only
  float* sums; // [strips][padded_value_size][32]
  float* rows; // [32][padded_value_size]
  float* maximum; // [strips][32]
  float* total; // [strips][32]
  int32_t* place; // [strips][32], -1 in lanes without a row
  int32_t* position; // [strips][32]

  // Weights take the place of the scores they come from, unless they are twice as many.
  FR_MEMBER T* weights_of(const AttentionArgs& a, int64_t turn) const {
    if constexpr (TERMS == 1) return reinterpret_cast<T*>(scores + turn % 2 * a.key_block * kStrip);
    return weights + turn % 2 * TERMS * a.key_block * kStrip;
  }

  static int64_t layout(const AttentionArgs& a, char* base, Tile* tile) {
    const int64_t strips = a.tile_rows / kStrip;
    int64_t at = 0; // bytes
    const auto take = [&](auto*& pointer, int64_t count) {
      using Item = std::remove_reference_t<decltype(*pointer)>;
      if (base != nullptr) pointer = reinterpret_cast<Item*>(base + at);
      at = round_up(at + count * static_cast<int64_t>(sizeof(Item)), 64);
    };
    Tile none;
    Tile& t = tile != nullptr ? *tile : none;
    t.strips = strips;
    take(t.queries, TERMS * strips * a.padded_size * kStrip);
    take(t.staging, TERMS * kStrip * a.padded_size);
    take(t.scores, 2 * a.key_block * kStrip);
    take(t.weights, TERMS == 1 ? 0 : 2 * TERMS * a.key_block * kStrip);
    take(t.sums, strips * a.padded_value_size * kStrip);
    take(t.rows, kStrip * a.padded_value_size);
    take(t.maximum, strips * kStrip);
    take(t.total, strips * kStrip);
    take(t.place, strips * kStrip);
    take(t.position, strips * kStrip);
    return at;
  }
};

template <typename T, int TERMS>
FR_INLINE void load_queries(const AttentionArgs& a, Tile<T, TERMS>& t, int64_t first, int64_t count, int64_t head) {
  const int64_t term = t.strips * a.padded_size * kStrip;
  int64_t token = first, group = 0;
  for (int64_t strip = 0; strip * kStrip < count * a.groups; ++strip) {
    for (int64_t lane = 0; lane < kStrip; ++lane) {
      const int64_t row = strip * kStrip + lane;
      T* staged = t.staging + lane * a.padded_size;
      if (row < count * a.groups) {
        load_row<T, TERMS>(row_of(a.query, token, head * a.groups + group), a.query.bf16, a.size,
                           a.padded_size, staged, kStrip * a.padded_size);
        t.place[row] = a.place[token];
        t.position[row] = a.window > 0 ? a.query_positions[token] : 0;
        if (++group == a.groups) {
          group = 0;
          ++token;
        }
      } else {
        for (int i = 0; i < TERMS; ++i) {
          std::memset(staged + i * kStrip * a.padded_size, 0, a.padded_size * sizeof(T));
        }
        t.place[row] = -1;
        t.position[row] = 0;
      }
    }
    for (int i = 0; i < TERMS; ++i) {
      pack_strip<T>(t.staging + i * kStrip * a.padded_size, a.padded_size, a.padded_size,
                    t.queries + i * term + strip * a.padded_size * kStrip);
    }
  }
}

// Scores of keys the lanes do not see become -inf; the rows of `scores` are the keys key..stop-1.
FR_INLINE void mask_scores(const AttentionArgs& a, float* scores, int64_t key, int64_t stop, const int32_t* place,
                           const int32_t* position) {
  for (int v = 0; v < kVectors; ++v) {
    const vi at = load(place + v * kWidth);
    const vi oldest = load(position + v * kWidth) - fill(static_cast<int32_t>(a.window > 0 ? a.window - 1 : 0));
    for (int64_t j = key; j < stop; ++j) {
      float* row = scores + (j - key) * kStrip + v * kWidth;
      vi seen = (fill(static_cast<int32_t>(j)) <= at) & (at < fill(a.until[j]));
      if (a.window > 0) seen &= fill(a.key_positions[j]) >= oldest;
      store(row, seen ? load(row) : fill(kMinusInfinity));
    }
  }
}

// s -> scale * s, through the soft cap where there is one.
FR_INLINE void transform_scores(float* scores, int64_t count, float scale, float softcap) {
  for (int64_t i = 0; i < count; i += kWidth) {
    vf s = load(scores + i) * fill(scale);
    if (softcap > 0) s = tanhv(s * fill(1 / softcap)) * fill(softcap);
    store(scores + i, s);
  }
}

// weights <- 2^(factor * s - m) as operands; adds their sums to `total`. `rows` is a multiple of 32.
template <typename T, int TERMS>
FR_INLINE void exponentiate(float* scores, T* weights, int64_t term_stride, int64_t rows, float factor,
                            const float* maximum, float* total) {
  if constexpr (std::is_same_v<T, float>) {
    for (int v = 0; v < kVectors; ++v) {
      const vf m = load(maximum + v * kWidth);
      vf sum{};
      for (int64_t r = 0; r < rows; ++r) {
        float* at = scores + r * kStrip + v * kWidth;
        const vf p = exp2v<6>(load(at) * fill(factor) - m);
        sum += p;
        store(at, p);
      }
      store(total + v * kWidth, load(total + v * kWidth) + sum);
    }
  } else {
#if FR_BF16
    constexpr int DEGREE = TERMS == 2 ? 5 : 4;
    const __m512i interleave = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7,
                                                22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    const auto pair = [&](vf even, vf odd) {
      return _mm512_permutexvar_epi16(interleave, (__m512i)_mm512_cvtne2ps_pbh((__m512)odd, (__m512)even));
    };
    const auto rounded = [](vf x) { // to bf16, kept as float
      const vi u = (vi)x;
      return (vf)((u + fill(0x7fff) + ((u >> 16) & fill(1))) & fill(static_cast<int32_t>(0xffff0000)));
    };
    const vf m0 = load(maximum), m1 = load(maximum + 16), spread = fill(factor);
    vf sum0{}, sum1{};
    for (int64_t r = 0; r < rows; r += 2) {
      const float* at = scores + r * kStrip;
      const vf even0 = exp2v<DEGREE>(load(at) * spread - m0), even1 = exp2v<DEGREE>(load(at + 16) * spread - m1);
      const vf odd0 = exp2v<DEGREE>(load(at + 32) * spread - m0), odd1 = exp2v<DEGREE>(load(at + 48) * spread - m1);
      sum0 += even0 + odd0;
      sum1 += even1 + odd1;
      T* out = weights + r * kStrip;
      _mm512_storeu_si512(out, pair(even0, odd0));
      _mm512_storeu_si512(out + 32, pair(even1, odd1));
      if constexpr (TERMS == 2) {
        _mm512_storeu_si512(out + term_stride, pair(even0 - rounded(even0), odd0 - rounded(odd0)));
        _mm512_storeu_si512(out + term_stride + 32, pair(even1 - rounded(even1), odd1 - rounded(odd1)));
      }
    }
    store(total, load(total) + sum0);
    store(total + 16, load(total + 16) + sum1);
#endif
  }
}

// The greatest score of each lane; `rows` is a multiple of 32.
FR_INLINE void greatest_scores(const float* scores, int64_t rows, vf* best) {
#pragma GCC unroll 8
  for (int v = 0; v < kVectors; ++v) best[v] = fill(kMinusInfinity);
  for (int64_t r = 0; r < rows; r += 4) { // four at a time: one chain of maxima would wait for itself
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      const float* at = scores + r * kStrip + v * kWidth;
      const vf low = larger(load(at), load(at + kStrip)), high = larger(load(at + 2 * kStrip), load(at + 3 * kStrip));
      best[v] = larger(best[v], larger(low, high));
    }
  }
}

// Raises the running maximum of the lanes where it must be; `total` and `sums` (null: still empty) follow it.
FR_INLINE void raise_maximum(const vf* best, float factor, float* maximum, float* total, float* sums, int64_t columns) {
  vf raised[kVectors], scaling[kVectors];
  vi raise{};
#pragma GCC unroll 8
  for (int v = 0; v < kVectors; ++v) {
    raised[v] = best[v] * fill(factor);
    raise |= raised[v] > load(maximum + v * kWidth) + fill(kSlack);
  }
  if (!any(raise)) return;
#pragma GCC unroll 8
  for (int v = 0; v < kVectors; ++v) {
    const vf old = load(maximum + v * kWidth);
    raised[v] = larger(old, raised[v]);
    // A lane that has seen nothing keeps -inf; 0 stands in for it so that no inf - inf arises.
    scaling[v] = exp2v<6>(old - (raised[v] == fill(kMinusInfinity) ? vf{} : raised[v]));
    store(maximum + v * kWidth, raised[v]);
    store(total + v * kWidth, load(total + v * kWidth) * scaling[v]);
  }
  if (sums == nullptr) return;
  for (int64_t c = 0; c < columns; ++c) {
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      float* at = sums + c * kStrip + v * kWidth;
      store(at, load(at) * scaling[v]);
    }
  }
}

// A strip against a block of keys, on its way through scores, maximum, weights and sums.
struct Unit {
  int64_t strip, start, stop; // keys
  bool full; // no mask needed
  bool first; // of its strip
  FR_MEMBER int64_t base() const { return start / kStrip * kStrip; }
  FR_MEMBER int64_t rows() const { return round_up(stop, kStrip) - base(); }
};

// The units of a tile in order. A strip leaves out masked keys that none of its rows sees, and needs no mask where
// all of them see all.
struct Units {
  const AttentionArgs& a;
  int64_t block, last_block, strips;
  int64_t strip = 0;
  int32_t expiry = 0;
  int32_t lowest[kMaxStrips], highest[kMaxStrips]; // places
  bool started[kMaxStrips] = {};

  FR_MEMBER bool next(Unit& unit) {
    for (; block < last_block; ++block, strip = 0) {
      const int64_t start = a.block_start[block], stop = a.block_stop[block];
      if (strip == 0 && !a.block_full[block]) expiry = minimum_of(a.until + start, stop - start);
      while (strip < strips) {
        const int64_t s = strip++;
        unit = {s, start, stop, a.block_full[block], !started[s]};
        if (!unit.full) {
          unit.stop = lesser(stop, highest[s] + 1);
          if (unit.stop <= start) continue;
          unit.full = a.window == 0 && unit.stop - 1 <= lowest[s] && highest[s] < expiry;
        }
        started[s] = true;
        return true;
      }
    }
    return false;
  }
};

template <typename T, int TERMS>
FR_INLINE void score_unit(const AttentionArgs& a, Tile<T, TERMS>& t, const Unit& u, int64_t head, float* scores) {
  const int64_t base = u.base(), rows = u.rows();
  const int64_t key_term = a.key_heads * a.padded_keys * a.padded_size;
  const T* keys = static_cast<const T*>(a.packed_keys) + (head * a.padded_keys + base) * a.padded_size;
  const T* queries = t.queries + u.strip * a.padded_size * kStrip;
  gemm<T, TERMS, TERMS>({keys, key_term}, a.padded_size, kStrip, {queries, t.strips * a.padded_size * kStrip}, scores,
                        rows, a.padded_size, false);
  if (a.softcap > 0 || !(a.scale > 0)) transform_scores(scores, rows * kStrip, a.scale, a.softcap);
  if (!u.full) {
    mask_scores(a, scores + (u.start - base) * kStrip, u.start, u.stop, t.place + u.strip * kStrip,
                t.position + u.strip * kStrip);
  }
  for (int64_t i = 0; i < (u.start - base) * kStrip; ++i) scores[i] = kMinusInfinity;
  for (int64_t i = (u.stop - base) * kStrip; i < rows * kStrip; ++i) scores[i] = kMinusInfinity;
}

template <typename T, int TERMS>
FR_INLINE void exponentiate_unit(const AttentionArgs& a, Tile<T, TERMS>& t, const Unit& u, float factor, float* scores,
                                 T* weights) {
  alignas(64) float base[kStrip]; // a lane that has seen nothing: 2^(-inf - 0) is 0
  const float* maximum = t.maximum + u.strip * kStrip;
  for (int lane = 0; lane < kStrip; ++lane) base[lane] = maximum[lane] == kMinusInfinity ? 0.0f : maximum[lane];
  exponentiate<T, TERMS>(scores, weights, a.key_block * kStrip, u.rows(), factor, base, t.total + u.strip * kStrip);
}

// Adds the unit's weights times its values to the sums.
template <typename T, int TERMS>
FR_INLINE void sum_unit(const AttentionArgs& a, Tile<T, TERMS>& t, const Unit& u, int64_t head, const T* weights) {
  const int64_t value_term = a.key_heads * a.padded_keys * a.padded_value_size;
  const T* values = static_cast<const T*>(a.packed_values) + (head * a.padded_keys + u.base()) * a.padded_value_size;
  gemm<T, TERMS, TERMS>({values, value_term}, kStrip, a.padded_value_size * kStrip, {weights, a.key_block * kStrip},
                        t.sums + u.strip * a.padded_value_size * kStrip, a.padded_value_size, u.rows(), !u.first);
}

template <typename T, int TERMS>
FR_INLINE void write_strip(const AttentionArgs& a, Tile<T, TERMS>& t, int64_t strip, int64_t first, int64_t count,
                           int64_t head, bool nothing_seen) {
  float* sums = t.sums + strip * a.padded_value_size * kStrip;
  const float* total = t.total + strip * kStrip;
  alignas(64) float inverse[kStrip];
  for (int lane = 0; lane < kStrip; ++lane) inverse[lane] = total[lane] > 0 ? 1 / total[lane] : 0.0f;
  if (nothing_seen) {
    std::memset(sums, 0, a.padded_value_size * kStrip * sizeof(float));
  } else {
    for (int64_t c = 0; c < a.padded_value_size; ++c) {
      for (int v = 0; v < kVectors; ++v) {
        float* at = sums + c * kStrip + v * kWidth;
        store(at, load(at) * load(inverse + v * kWidth));
      }
    }
  }
  for (int64_t c = 0; c < a.padded_value_size; c += 16) {
    transpose16(sums + c * kStrip, kStrip, t.rows + c, a.padded_value_size);
    transpose16(sums + c * kStrip + 16, kStrip, t.rows + 16 * a.padded_value_size + c, a.padded_value_size);
  }
  int64_t token = first + strip * kStrip / a.groups, group = strip * kStrip % a.groups;
  for (int64_t lane = 0; lane < kStrip; ++lane) {
    const int64_t row = strip * kStrip + lane;
    if (row >= count * a.groups) break;
    const int64_t index = token * a.heads + head * a.groups + group;
    if (++group == a.groups) {
      group = 0;
      ++token;
    }
    const float* from = t.rows + lane * a.padded_value_size;
    if (a.out_bf16) {
      bf16* to = static_cast<bf16*>(a.out) + index * a.value_size;
      narrow_row(from, to, a.value_size);
    } else {
      std::memcpy(static_cast<float*>(a.out) + index * a.value_size, from, a.value_size * sizeof(float));
    }
    if (a.lse != nullptr) {
      a.lse[index] = total[lane] > 0 ? t.maximum[row] * kLn2 + std::log(total[lane]) : kMinusInfinity;
    }
  }
}

template <typename T, int TERMS>
void attend(const AttentionArgs& a, int64_t tile, int64_t head, void* workspace) {
  Tile<T, TERMS> t;
  Tile<T, TERMS>::layout(a, static_cast<char*>(workspace), &t);
  const int64_t first = a.tile_start[tile], count = a.tile_stop[tile] - first;
  const int64_t strips = (count * a.groups + kStrip - 1) / kStrip;
  load_queries<T, TERMS>(a, t, first, count, head);
  for (int64_t i = 0; i < strips * kStrip; ++i) t.maximum[i] = kMinusInfinity;
  std::memset(t.total, 0, strips * kStrip * sizeof(float));
  Units units{a, a.block_ptr[tile], a.block_ptr[tile + 1], strips};
  for (int64_t strip = 0; strip < strips; ++strip) {
    const int64_t lanes = lesser(kStrip, count * a.groups - strip * kStrip);
    units.lowest[strip] = minimum_of(t.place + strip * kStrip, lanes);
    units.highest[strip] = maximum_of(t.place + strip * kStrip, lanes);
  }

  // The scores of a unit are worked out before the values of the unit before it are summed. Tile units fall asleep
  // after some 250 ns without a product and take 300 ns to wake, so softmax is done in two parts with products between.
  const float factor = a.softcap > 0 || !(a.scale > 0) ? kLog2E : a.scale * kLog2E;
  Unit unit, before;
  int64_t turn = 0;
  for (; units.next(unit); ++turn) {
    float* scores = t.scores + turn % 2 * a.key_block * kStrip;
    T* weights = t.weights_of(a, turn);
    vf best[kVectors];
    score_unit(a, t, unit, head, scores);
    greatest_scores(scores, unit.rows(), best);
    if (turn > 0) sum_unit(a, t, before, head, t.weights_of(a, turn + 1));
    raise_maximum(best, factor, t.maximum + unit.strip * kStrip, t.total + unit.strip * kStrip,
                  unit.first ? nullptr : t.sums + unit.strip * a.padded_value_size * kStrip, a.padded_value_size);
    exponentiate_unit(a, t, unit, factor, scores, weights);
    before = unit;
  }
  if (turn > 0) sum_unit(a, t, before, head, t.weights_of(a, turn + 1));
  for (int64_t strip = 0; strip < strips; ++strip) {
    write_strip<T, TERMS>(a, t, strip, first, count, head, !units.started[strip]);
  }
}

template <typename T, int TERMS>
int64_t attend_workspace(const AttentionArgs& a) {
  return Tile<T, TERMS>::layout(a, nullptr, nullptr);
}

// Keys and values of 32 tokens into operand layout; tokens past the end become zeros.
template <typename T, int TERMS>
void pack_keys(const AttentionArgs& a, int64_t head, int64_t group) {
  const int64_t key_term = a.key_heads * a.padded_keys * a.padded_size;
  const int64_t value_term = a.key_heads * a.padded_keys * a.padded_value_size;
  T* keys = static_cast<T*>(a.packed_keys) + (head * a.padded_keys + group * kStrip) * a.padded_size;
  T* values = static_cast<T*>(a.packed_values) + (head * a.padded_keys + group * kStrip) * a.padded_value_size;
  alignas(64) T staged[TERMS * kStrip * 256];
  const int64_t staged_term = kStrip * a.padded_value_size;
  for (int64_t i = 0; i < kStrip; ++i) {
    const int64_t token = group * kStrip + i;
    T* key_row = keys + i * a.padded_size;
    T* value_row = staged + i * a.padded_value_size;
    if (token < a.keys) {
      load_row<T, TERMS>(row_of(a.key, token, head), a.key.bf16, a.size, a.padded_size, key_row, key_term);
      load_row<T, TERMS>(row_of(a.value, token, head), a.value.bf16, a.value_size, a.padded_value_size, value_row,
                         staged_term);
    } else {
      for (int term = 0; term < TERMS; ++term) {
        std::memset(key_row + term * key_term, 0, a.padded_size * sizeof(T));
        std::memset(value_row + term * staged_term, 0, a.padded_value_size * sizeof(T));
      }
    }
  }
  for (int term = 0; term < TERMS; ++term) {
    transpose_group(staged + term * staged_term, a.padded_value_size, values + term * value_term);
  }
}
