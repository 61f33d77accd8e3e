// One tile of queries against the key blocks of its schedule, by online softmax over strips of 32 query rows.
//
// Row r of the tile is token r / groups, head r % groups of its key head. Everything is held transposed: scores
// [key][32 lanes], sums [value column][32 lanes]. With m the running reference of a lane (in log2 units), l the sum of
// 2^(s - m) and O the sum of 2^(s - m) v, a block only raises m where its maximum exceeds m by kSlack, so that O is
// seldom rescaled; the result O / l is the same, and 2^kSlack is far from overflow.
//
// The result of a row depends, to the last bit, on its query and on the keys of its path alone, however the tree is
// packed and the blocks are cut. First, m is a whole number: weights and sums then differ by an exact power of two
// where m differs, and rounding weights to bf16 loses the same bits. Second, the order of summation is one of depth:
// a product adds up a chunk of 32 slots before it adds to the sums, slots have the parity of their keys' depth,
// unseen slots weigh 0, and each segment of 16 chunks is summed apart (the inner sums) and then added (the outer).

constexpr float kSlack = 8.0f;
constexpr int64_t kMaxStrips = 64; // of a tile
constexpr int64_t kRowsAStep = 8; // of weights, between two pieces of a product: both then end at about the same time
// A lane has two totals: of the weights as rounded, by which O is divided (so that where one key has nearly all the
// weight its rounding cancels), and for lse of the weights before rounding.
constexpr int64_t kTotals = 2 * kStrip;

template <typename T, int TERMS>
struct Tile {
  int64_t strips;
  T* queries; // [TERMS][strips] packed [padded_size][32]
  T* staging; // [TERMS][32][padded_size]
  float* scores; // two of [key_block][32]
  T* weights; // two of [TERMS] packed [key_block][32], of split operands only
  float* sums; // [strips][padded_value_size][32], of the segment at hand
  float* outer_sums; // the same, of segments before it
  float* rows; // [32][padded_value_size]
  float* maximum; // [strips][32]
  float* total; // [strips][2][32], of the segment at hand
  float* outer_total; // the same, of segments before it
  int32_t* segment; // [strips][32], at hand; -1 before any
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
    take(t.outer_sums, a.parts > 0 ? 0 : strips * a.padded_value_size * kStrip);
    take(t.rows, kStrip * a.padded_value_size);
    take(t.maximum, strips * kStrip);
    take(t.total, strips * kTotals);
    take(t.outer_total, strips * kTotals);
    take(t.segment, strips * kStrip);
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

// Asks for memory before it is used: queries and results are spread over it a row of a head at a time, which is too
// short for the machine to foresee.
template <int WRITE>
FR_INLINE void fetch(const char* row, int64_t bytes) {
  constexpr int64_t kLine = 64;
  for (int64_t at = 0; at < bytes; at += kLine) __builtin_prefetch(row + at, WRITE, 2);
}

// The queries of a tile that this thread will probably take next.
FR_INLINE void fetch_queries(const AttentionArgs& a, int64_t tile, int64_t head) {
  if (tile >= a.tiles) return;
  const int64_t bytes = a.groups * a.size * (a.query.bf16 ? 2 : 4);
  for (int64_t token = a.tile_start[tile]; token < a.tile_stop[tile]; ++token) {
    fetch<0>(static_cast<const char*>(row_of(a.query, token, head * a.groups)), bytes);
  }
}

// The place of a tile's results.
FR_INLINE void fetch_results(const AttentionArgs& a, int64_t tile, int64_t head) {
  const int64_t bytes = a.groups * a.value_size * (a.out_bf16 ? 2 : 4);
  for (int64_t token = a.tile_start[tile]; token < a.tile_stop[tile]; ++token) {
    fetch<1>(static_cast<const char*>(a.out) + (token * a.key_heads + head) * bytes, bytes);
  }
}

// Scores of keys the lanes do not see become -inf; `scores` are of one chunk.
FR_INLINE void mask_chunk(const AttentionArgs& a, float* scores, int64_t chunk, const int32_t* place,
                          const int32_t* position) {
  for (int v = 0; v < kVectors; ++v) {
    const vi at = load(place + v * kWidth);
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

// s -> scale * s, through the soft cap where there is one.
FR_INLINE void transform_scores(float* scores, int64_t count, float scale, float softcap) {
  for (int64_t i = 0; i < count; i += kWidth) {
    vf s = load(scores + i) * fill(scale);
    if (softcap > 0) s = tanhv(s * fill(1 / softcap)) * fill(softcap);
    store(scores + i, s);
  }
}

// weights <- 2^(factor * s - m) as operands, for whole m; adds their sums to `total`, pair by pair of slots. `rows` is
// a multiple of 32. Products in the queue are done meanwhile.
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
    const __m512i interleave = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7,
                                                22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    const auto pair = [&](vf even, vf odd) {
      return _mm512_permutexvar_epi16(interleave, (__m512i)_mm512_cvtne2ps_pbh((__m512)odd, (__m512)even));
    };
    const vf spread = fill(factor), m[2] = {load(maximum), load(maximum + 16)};
    vf sum[2] = {load(total), load(total + 16)}, mass[2] = {load(total + kStrip), load(total + kStrip + 16)};
    for (int64_t r = 0; r < rows; r += 2) {
      if (r % kRowsAStep == 0) queue.step();
      vf even[2], odd[2];
#pragma GCC unroll 2
      for (int i = 0; i < 2; ++i) { // all of a row before it is overwritten
        const float* at = scores + r * kStrip + 16 * i;
        even[i] = exp2_below<DEGREE>(load(at) * spread, m[i]);
        odd[i] = exp2_below<DEGREE>(load(at + kStrip) * spread, m[i]);
      }
#pragma GCC unroll 2
      for (int i = 0; i < 2; ++i) {
        T* out = weights + r * kStrip + 32 * i;
        const __m512i high = pair(even[i], odd[i]);
        _mm512_storeu_si512(out, high);
        const vf even_high = (vf)_mm512_slli_epi32(high, 16);
        const vf odd_high = (vf)((vi)high & fill(static_cast<int32_t>(0xffff0000)));
        sum[i] += even_high + odd_high;
        if constexpr (TERMS == 2) {
          const __m512i low = pair(even[i] - even_high, odd[i] - odd_high);
          _mm512_storeu_si512(out + term_stride, low);
          sum[i] += (vf)_mm512_slli_epi32(low, 16) + (vf)((vi)low & fill(static_cast<int32_t>(0xffff0000)));
        }
        if constexpr (LSE) mass[i] += even[i] + odd[i];
      }
    }
#pragma GCC unroll 2
    for (int i = 0; i < 2; ++i) {
      store(total + 16 * i, sum[i]);
      if constexpr (LSE) store(total + kStrip + 16 * i, mass[i]);
    }
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

// Raises the running reference of the lanes where it must be; the totals and sums (null: still empty) follow it.
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
    // A lane that has seen nothing keeps -inf; 0 stands in for it so that no inf - inf arises.
    scaling[v] = exp2v<6>(old - (raised[v] == fill(kMinusInfinity) ? vf{} : raised[v]));
    store(maximum + v * kWidth, raised[v]);
    for (int64_t at = v * kWidth; at < kTotals; at += kStrip) {
      store(total + at, load(total + at) * scaling[v]);
      store(outer_total + at, load(outer_total + at) * scaling[v]);
    }
  }
  for (float* array : {sums, outer_sums}) {
    for (int64_t c = 0; array != nullptr && c < columns; ++c) {
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) {
        float* at = array + c * kStrip + v * kWidth;
        store(at, load(at) * scaling[v]);
      }
    }
  }
}

// A strip against a block of keys, on its way through scores, maximum, weights and sums.
struct Unit {
  int64_t strip, start, stop; // slots, whole chunks
  int32_t segment;
  bool full; // no mask needed
  bool first; // of its strip
  FR_MEMBER int64_t rows() const { return stop - start; }
};

// The units of a tile in order, of one segment or (part -1) of all. A strip leaves out chunks at the ends of a block
// that none of its rows sees.
struct Units {
  const AttentionArgs& a;
  int64_t block, last_block, strips, part;
  int64_t strip = 0;
  int32_t lowest[kMaxStrips], highest[kMaxStrips]; // places
  bool started[kMaxStrips] = {};

  FR_MEMBER bool sees(const Chunk& chunk, int64_t s) const {
    return chunk.first_birth <= highest[s] && lowest[s] < chunk.last_end;
  }
  // Whether every row of a strip sees the whole chunk, windows aside.
  FR_MEMBER bool sees_all(const Chunk& chunk, int64_t s) const {
    return chunk.last_birth <= lowest[s] && highest[s] < chunk.first_end;
  }

  FR_MEMBER bool next(Unit& unit) {
    for (; block < last_block; ++block, strip = 0) {
      const int64_t start = a.block_start[block], stop = a.block_stop[block];
      const int32_t segment = static_cast<int32_t>(a.chunks[start / kStrip].level / kSegment);
      if (part >= 0 && segment != part) continue;
      while (strip < strips) {
        const int64_t s = strip++;
        unit = {s, start, stop, segment, a.block_full[block], !started[s]};
        if (!unit.full) {
          while (unit.start < unit.stop && !sees(a.chunks[unit.start / kStrip], s)) unit.start += kStrip;
          while (unit.start < unit.stop && !sees(a.chunks[unit.stop / kStrip - 1], s)) unit.stop -= kStrip;
          if (unit.start == unit.stop) continue;
        }
        started[s] = true;
        return true;
      }
    }
    return false;
  }
};

// Keys times queries.
template <typename T, int TERMS>
FR_INLINE Product<T, TERMS, TERMS> scores_of(const AttentionArgs& a, Tile<T, TERMS>& t, const Unit& u, int64_t head,
                                             float* scores) {
  const T* keys = static_cast<const T*>(a.packed_keys) + (head * a.slots + u.start) * a.padded_size;
  const T* queries = t.queries + u.strip * a.padded_size * kStrip;
  return {{keys, a.key_heads * a.slots * a.padded_size}, a.padded_size, kStrip,
          {queries, t.strips * a.padded_size * kStrip}, scores, kStrip, u.rows(), a.padded_size, false};
}

// Values times the unit's weights, added to the sums.
template <typename T, int TERMS>
FR_INLINE Product<T, TERMS, TERMS> sums_of(const AttentionArgs& a, Tile<T, TERMS>& t, const Unit& u, int64_t head,
                                           const T* weights) {
  const T* values = static_cast<const T*>(a.packed_values) + (head * a.slots + u.start) * a.padded_value_size;
  return {{values, a.key_heads * a.slots * a.padded_value_size}, kStrip, a.padded_value_size * kStrip,
          {weights, a.key_block * kStrip}, t.sums + u.strip * a.padded_value_size * kStrip, kStrip,
          a.padded_value_size, u.rows(), !u.first};
}

// What the products alone do not do: scale where exponentiating does not, the soft cap, the mask.
template <typename T, int TERMS>
FR_INLINE void complete_scores(const AttentionArgs& a, Tile<T, TERMS>& t, const Units& units, const Unit& u,
                               float* scores) {
  const int64_t rows = u.rows();
  if (a.softcap > 0 || !(a.scale > 0)) transform_scores(scores, rows * kStrip, a.scale, a.softcap);
  if (u.full) return;
  for (int64_t chunk = u.start / kStrip; chunk < u.stop / kStrip; ++chunk) {
    if (a.window == 0 && units.sees_all(a.chunks[chunk], u.strip)) continue;
    mask_chunk(a, scores + (chunk * kStrip - u.start) * kStrip, chunk, t.place + u.strip * kStrip,
               t.position + u.strip * kStrip);
  }
}

// Where a lane goes on to keys of another segment, what it has summed becomes part of its outer sums.
template <typename T, int TERMS>
FR_INLINE void enter_segment(const AttentionArgs& a, Tile<T, TERMS>& t, const Unit& u, const vf* best,
                             bool* outer_started) {
  int32_t* segment = t.segment + u.strip * kStrip;
  vi leaving[kVectors], leaves{};
#pragma GCC unroll 8
  for (int v = 0; v < kVectors; ++v) {
    const vi at = load(segment + v * kWidth), seen = best[v] > fill(kMinusInfinity);
    leaving[v] = seen & (at >= fill(0)) & (at != fill(u.segment));
    leaves |= leaving[v];
    *reinterpret_cast<vi_u*>(segment + v * kWidth) = seen ? fill(u.segment) : at;
  }
  if (u.first || !any(leaves)) return;
  const int64_t columns = a.padded_value_size;
  float* total = t.total + u.strip * kTotals;
  float* outer_total = t.outer_total + u.strip * kTotals;
  float* sums = t.sums + u.strip * columns * kStrip;
  float* outer = t.outer_sums + u.strip * columns * kStrip;
  const bool add = outer_started[u.strip];
  outer_started[u.strip] = true;
  const auto hand_over = [&](float* from, float* to, int v) {
    const vf inner = load(from);
    store(to, (add ? load(to) : vf{}) + (leaving[v] ? inner : vf{}));
    store(from, leaving[v] ? vf{} : inner);
  };
#pragma GCC unroll 8
  for (int v = 0; v < 2 * kVectors; ++v) hand_over(total + v * kWidth, outer_total + v * kWidth, v % kVectors);
  for (int64_t c = 0; c < columns; ++c) {
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      hand_over(sums + c * kStrip + v * kWidth, outer + c * kStrip + v * kWidth, v);
    }
  }
}

template <typename T, int TERMS>
FR_INLINE void exponentiate_unit(const AttentionArgs& a, Tile<T, TERMS>& t, const Unit& u, float factor, float* scores,
                                 T* weights, Queue<T, TERMS, TERMS>& queue) {
  alignas(64) float base[kStrip]; // a lane that has seen nothing: 2^(-inf - 0) is 0
  const float* maximum = t.maximum + u.strip * kStrip;
  for (int lane = 0; lane < kStrip; ++lane) base[lane] = maximum[lane] == kMinusInfinity ? 0.0f : maximum[lane];
  float* total = t.total + u.strip * kTotals;
  const int64_t term_stride = a.key_block * kStrip;
  if (a.lse != nullptr) {
    exponentiate<T, TERMS, true>(scores, weights, term_stride, u.rows(), factor, base, total, queue);
  } else {
    exponentiate<T, TERMS, false>(scores, weights, term_stride, u.rows(), factor, base, total, queue);
  }
}

template <typename T, int TERMS>
FR_INLINE void write_strip(const AttentionArgs& a, Tile<T, TERMS>& t, int64_t strip, int64_t first, int64_t count,
                           int64_t head, bool nothing_seen, bool outer) {
  float* sums = t.sums + strip * a.padded_value_size * kStrip;
  float* total = t.total + strip * kTotals;
  const float* mass = total + kStrip;
  if (outer) {
    const float* outer_sums = t.outer_sums + strip * a.padded_value_size * kStrip;
    for (int64_t i = 0; i < a.padded_value_size * kStrip; i += kWidth) store(sums + i, load(outer_sums + i) + load(sums + i));
    for (int64_t i = 0; i < kTotals; i += kWidth) store(total + i, load(t.outer_total + strip * kTotals + i) + load(total + i));
  }
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
      int exponent; // apart, so that the result does not depend on the reference either
      const float fraction = __builtin_frexpf(mass[lane], &exponent);
      const double lse = (static_cast<double>(t.maximum[row]) + exponent) * kLn2Wide + __builtin_log(fraction);
      a.lse[index] = mass[lane] > 0 ? static_cast<float>(lse) : kMinusInfinity;
    }
  }
}

// Where a part of a tile's strip leaves its state.
struct Part {
  float *sums, *maximum, *total;
  FR_MEMBER Part(const AttentionArgs& a, int64_t tile, int64_t head, int64_t part, int64_t strip) {
    const int64_t at = (((tile * a.key_heads + head) * a.parts + part) * (a.tile_rows / kStrip) + strip) * kStrip;
    sums = a.part_sums + at * a.padded_value_size;
    maximum = a.part_maximum + at;
    total = a.part_total + 2 * at;
  }
};

template <typename T, int TERMS>
void attend(const AttentionArgs& a, int64_t tile, int64_t head, int64_t part, void* workspace) {
  Tile<T, TERMS> t{};
  Tile<T, TERMS>::layout(a, static_cast<char*>(workspace), &t);
  const int64_t first = a.tile_start[tile], count = a.tile_stop[tile] - first, columns = a.padded_value_size;
  const int64_t strips = (count * a.groups + kStrip - 1) / kStrip;
  load_queries<T, TERMS>(a, t, first, count, head);
  if (part < 0) fetch_queries(a, tile + a.threads, head);
  for (int64_t i = 0; i < strips * kStrip; ++i) {
    t.maximum[i] = kMinusInfinity;
    t.segment[i] = -1;
  }
  std::memset(t.total, 0, strips * kTotals * sizeof(float));
  std::memset(t.outer_total, 0, strips * kTotals * sizeof(float));
  bool outer_started[kMaxStrips] = {};
  Units units{a, a.block_ptr[tile], a.block_ptr[tile + 1], strips, part};
  for (int64_t strip = 0; strip < strips; ++strip) {
    const int64_t lanes = lesser(kStrip, count * a.groups - strip * kStrip);
    units.lowest[strip] = minimum_of(t.place + strip * kStrip, lanes);
    units.highest[strip] = maximum_of(t.place + strip * kStrip, lanes);
  }

  // While a unit's scores are exponentiated, the tile units sum the values of the unit before it and work out the
  // scores of the unit after it. Besides, they fall asleep after some 250 ns without a product and take 300 ns to wake.
  const float factor = a.softcap > 0 || !(a.scale > 0) ? kLog2E : a.scale * kLog2E;
  Queue<T, TERMS, TERMS> queue;
  Unit before{}, unit{}, after{};
  bool more = units.next(unit);
  if (more) queue.push(scores_of(a, t, unit, head, t.scores));
  queue.finish();
  for (int64_t turn = 0; more; ++turn, before = unit, unit = after) {
    float* scores = t.scores + turn % 2 * a.key_block * kStrip;
    vf best[kVectors];
    complete_scores(a, t, units, unit, scores);
    greatest_scores(scores, unit.rows(), best);
    if (turn > 0) queue.push(sums_of(a, t, before, head, t.weights_of(a, turn + 1)));
    if (before.strip == unit.strip) queue.finish(); // its sums may be about to be scaled
    enter_segment(a, t, unit, best, outer_started);
    const int64_t rows = unit.strip * kStrip;
    raise_maximum(best, factor, t.maximum + rows, t.total + 2 * rows, t.outer_total + 2 * rows,
                  unit.first ? nullptr : t.sums + rows * columns,
                  outer_started[unit.strip] ? t.outer_sums + rows * columns : nullptr, columns);
    more = units.next(after);
    // After the sums in the queue: the weights that they read lie where these scores go.
    if (more) queue.push(scores_of(a, t, after, head, t.scores + (turn + 1) % 2 * a.key_block * kStrip));
    exponentiate_unit(a, t, unit, factor, scores, t.weights_of(a, turn), queue);
    queue.finish();
    if (!more) queue.push(sums_of(a, t, unit, head, t.weights_of(a, turn)));
  }
  if (part < 0) fetch_results(a, tile, head);
  queue.finish();
  for (int64_t strip = 0; strip < strips; ++strip) {
    if (part < 0) {
      write_strip<T, TERMS>(a, t, strip, first, count, head, !units.started[strip], outer_started[strip]);
      continue;
    }
    const Part out(a, tile, head, part, strip);
    std::memcpy(out.maximum, t.maximum + strip * kStrip, kStrip * sizeof(float));
    std::memcpy(out.total, t.total + strip * kTotals, kTotals * sizeof(float));
    if (units.started[strip]) std::memcpy(out.sums, t.sums + strip * columns * kStrip, columns * kStrip * sizeof(float));
  }
}

// Adds the segments up in the order in which one task adds them.
template <typename T, int TERMS>
void join(const AttentionArgs& a, int64_t tile, int64_t head, void* workspace) {
  Tile<T, TERMS> t{};
  Tile<T, TERMS>::layout(a, static_cast<char*>(workspace), &t);
  const int64_t first = a.tile_start[tile], count = a.tile_stop[tile] - first, columns = a.padded_value_size;
  for (int64_t strip = 0; strip * kStrip < count * a.groups; ++strip) {
    float* maximum = t.maximum + strip * kStrip;
    float* total = t.total + strip * kTotals;
    float* sums = t.sums + strip * columns * kStrip;
    for (int64_t lane = 0; lane < kStrip; ++lane) maximum[lane] = kMinusInfinity;
    std::memset(total, 0, kTotals * sizeof(float));
    for (int64_t part = 0; part < a.parts; ++part) {
      const Part state(a, tile, head, part, strip);
      for (int v = 0; v < kVectors; ++v) {
        store(maximum + v * kWidth, larger(load(maximum + v * kWidth), load(state.maximum + v * kWidth)));
      }
    }
    bool begun = false;
    for (int64_t part = 0; part < a.parts; ++part) {
      const Part state(a, tile, head, part, strip);
      vf scaling[kVectors];
      vi seen{};
      for (int v = 0; v < kVectors; ++v) {
        const vf m = load(maximum + v * kWidth), own = load(state.maximum + v * kWidth);
        scaling[v] = exp2v<6>(own - (m == fill(kMinusInfinity) ? vf{} : m));
        seen |= own > fill(kMinusInfinity);
        for (int64_t at = v * kWidth; at < kTotals; at += kStrip) {
          store(total + at, load(total + at) + load(state.total + at) * scaling[v]);
        }
      }
      if (!any(seen)) continue; // its sums were not written
      for (int64_t c = 0; c < columns; ++c) {
        for (int v = 0; v < kVectors; ++v) {
          float* at = sums + c * kStrip + v * kWidth;
          store(at, (begun ? load(at) : vf{}) + load(state.sums + c * kStrip + v * kWidth) * scaling[v]);
        }
      }
      begun = true;
    }
    write_strip<T, TERMS>(a, t, strip, first, count, head, !begun, false);
  }
}

template <typename T, int TERMS>
int64_t attend_workspace(const AttentionArgs& a) {
  return Tile<T, TERMS>::layout(a, nullptr, nullptr);
}

// Keys and values of a chunk's slots into operand layout; empty slots become zeros.
template <typename T, int TERMS>
void pack_keys(const AttentionArgs& a, int64_t head, int64_t chunk) {
  const int64_t key_term = a.key_heads * a.slots * a.padded_size;
  const int64_t value_term = a.key_heads * a.slots * a.padded_value_size;
  T* keys = static_cast<T*>(a.packed_keys) + (head * a.slots + chunk * kStrip) * a.padded_size;
  T* values = static_cast<T*>(a.packed_values) + (head * a.slots + chunk * kStrip) * a.padded_value_size;
  alignas(64) T staged[TERMS * kStrip * 256];
  const int64_t staged_term = kStrip * a.padded_value_size;
  for (int64_t i = 0; i < kStrip; ++i) {
    const int64_t token = a.slot_key[chunk * kStrip + i];
    T* key_row = keys + i * a.padded_size;
    T* value_row = staged + i * a.padded_value_size;
    if (token >= 0) {
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
