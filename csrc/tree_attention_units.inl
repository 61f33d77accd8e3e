// The units of work of a tile, each a strip of queries against a block of keys, and the steps of a unit.

// A strip against a block of keys, through the steps scores, maximum, weights and sums.
struct Unit {
  int64_t strip, start, stop; // slots, whole chunks
  int32_t segment;
  bool full; // no mask needed
  bool first; // of its strip
  FR_MEMBER int64_t rows() const { return stop - start; }
};

// The units of a tile in order, of one segment or (part -1) of all. A strip skips chunks at the ends of a block that
// none of its rows sees.
struct Units {
  const AttentionArgs& a;
  int64_t block, last_block, strips, part;
  int64_t strip = 0;
  int32_t lowest[kMaxStrips], highest[kMaxStrips]; // query nodes
  bool started[kMaxStrips] = {};

  FR_MEMBER bool sees(const Chunk& chunk, int64_t s) const {
    return chunk.first_birth <= highest[s] && lowest[s] < chunk.last_end;
  }
  // Return whether every row of a strip sees the whole chunk, windows aside.
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

// Multiply keys by queries.
template <typename T, int TERMS>
FR_INLINE Product<T, TERMS, TERMS> scores_of(const AttentionArgs& a, Tile<T, TERMS>& t, const Unit& u, int64_t head,
                                             float* scores) {
  const T* keys = static_cast<const T*>(a.packed_keys) + (head * a.slots + u.start) * a.padded_size;
  const T* queries = t.queries + u.strip * a.padded_size * kStrip;
  return {{keys, a.key_heads * a.slots * a.padded_size}, a.padded_size, kStrip,
          {queries, t.strips * a.padded_size * kStrip}, scores, kStrip, u.rows(), a.padded_size, false};
}

// Add values times the unit's weights to the sums.
template <typename T, int TERMS>
FR_INLINE Product<T, TERMS, TERMS> sums_of(const AttentionArgs& a, Tile<T, TERMS>& t, const Unit& u, int64_t head,
                                           const T* weights) {
  const T* values = static_cast<const T*>(a.packed_values) + (head * a.slots + u.start) * a.padded_value_size;
  return {{values, a.key_heads * a.slots * a.padded_value_size}, kStrip, a.padded_value_size * kStrip,
          {weights, a.key_block * kStrip}, t.sums + u.strip * a.padded_value_size * kStrip, kStrip,
          a.padded_value_size, u.rows(), !u.first};
}

// Return whether scores are scaled before the exponential, which otherwise scales them itself.
FR_INLINE bool scales_first(const AttentionArgs& a) { return a.softcap > 0 || !(a.scale > 0) || a.slopes != nullptr; }

// Finish the scores: scale if the exponential does not, soft cap, slopes, mask.
template <typename T, int TERMS>
FR_INLINE void complete_scores(const AttentionArgs& a, Tile<T, TERMS>& t, const Units& units, const Unit& u,
                               float* scores) {
  const int64_t rows = u.rows();
  if (scales_first(a)) transform_scores(scores, rows * kStrip, a.scale, a.softcap);
  const int64_t lane = u.strip * kStrip;
  if (a.slopes != nullptr) add_slopes(a, scores, u.start, rows, t.slope + lane, t.position + lane);
  if (u.full) return;
  for (int64_t chunk = u.start / kStrip; chunk < u.stop / kStrip; ++chunk) {
    if (a.window == 0 && units.sees_all(a.chunks[chunk], u.strip)) continue;
    mask_chunk(a, scores + (chunk * kStrip - u.start) * kStrip, chunk, t.query_node + lane, t.position + lane);
  }
}

// When a lane reaches keys of another segment, add its sums to its outer sums.
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
