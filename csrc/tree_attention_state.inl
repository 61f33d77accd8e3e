// Attend with one tile of queries over the key blocks of its schedule, by online softmax over strips of 32 query rows.
//
// Row r of the tile is token r / groups, head r % groups of its key head. Everything is held transposed: scores
// [key][32 lanes], sums [value column][32 lanes]. With m the running reference of a lane (in log2 units), l the sum of
// 2^(s - m) and O the sum of 2^(s - m) v, a block raises m only if its maximum exceeds m by kSlack, so that O is seldom
// rescaled. The result O / l is the same, and 2^kSlack is far from overflow.
//
// The result of a row depends, to the last bit, only on its query and the keys of its path, however the tree is packed
// and the blocks are cut. First, m is a whole number: with another m, weights and sums differ by an exact power of two,
// and rounding weights to bf16 loses the same bits. Second, the order of summation follows depth: a product sums a
// chunk of 32 slots before it adds to the sums, slots have the parity of their keys' depth, unseen slots weigh 0, and
// each segment of 16 chunks is summed separately (the inner sums) and then added (the outer sums).

constexpr float kSlack = 8.0f;
constexpr int64_t kRowsAStep = 8; // of weights between two pieces of a product, so that both end at about the same time
// A lane has two totals: that of the rounded weights divides O (so that the rounding cancels if one key has nearly all
// the weight), and that of the weights before rounding gives lse.
constexpr int64_t kTotals = 2 * kStrip;

template <typename T, int TERMS>
struct Tile {
  int64_t strips;
  T* queries; // [TERMS][strips] packed [padded_size][32]
  T* staging; // [TERMS][32][padded_size]
  float* scores; // two of [key_block][32]
  T* weights; // two of [TERMS] packed [key_block][32], only for bf16x3
  float* sums; // [strips][padded_value_size][32], of the current segment
  float* outer_sums; // the same, of earlier segments
  float* rows; // [32][padded_value_size]
  float* maximum; // [strips][32]
  float* total; // [strips][2][32], of the current segment
  float* outer_total; // the same, of earlier segments
  int32_t* segment; // [strips][32], the current one; -1 before the first
  int32_t* query_node; // [strips][32], -1 for lanes without a row
  int32_t* position; // [strips][32]
  float* slope; // [strips][32]

  // Weights overwrite the scores they come from, unless they are twice as many.
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
    take(t.query_node, strips * kStrip);
    take(t.position, strips * kStrip);
    take(t.slope, strips * kStrip);
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
        t.query_node[row] = a.query_node[token];
        t.position[row] = a.query_positions != nullptr ? a.query_positions[token] : 0;
        t.slope[row] = a.slopes != nullptr ? a.slopes[head * a.groups + group] : 0.0f;
        if (++group == a.groups) {
          group = 0;
          ++token;
        }
      } else {
        for (int i = 0; i < TERMS; ++i) {
          std::memset(staged + i * kStrip * a.padded_size, 0, a.padded_size * sizeof(T));
        }
        t.query_node[row] = -1;
        t.position[row] = 0;
        t.slope[row] = 0.0f;
      }
    }
    for (int i = 0; i < TERMS; ++i) {
      pack_strip<T>(t.staging + i * kStrip * a.padded_size, a.padded_size, a.padded_size,
                    t.queries + i * term + strip * a.padded_size * kStrip);
    }
  }
}

// Prefetch memory: queries and results are spread over it, one row of a head at a time, which is too short for the
// hardware to foresee.
template <int WRITE>
FR_INLINE void fetch(const char* row, int64_t bytes) {
  constexpr int64_t kLine = 64;
  for (int64_t at = 0; at < bytes; at += kLine) __builtin_prefetch(row + at, WRITE, 2);
}

// Prefetch the queries of the tile that this thread will probably take next.
FR_INLINE void fetch_queries(const AttentionArgs& a, int64_t tile, int64_t head) {
  if (tile >= a.tiles) return;
  const int64_t bytes = a.groups * a.size * (a.query.bf16 ? 2 : 4);
  for (int64_t token = a.tile_start[tile]; token < a.tile_stop[tile]; ++token) {
    fetch<0>(static_cast<const char*>(row_of(a.query, token, head * a.groups)), bytes);
  }
}

// Prefetch the memory of a tile's results.
FR_INLINE void fetch_results(const AttentionArgs& a, int64_t tile, int64_t head) {
  const int64_t bytes = a.groups * a.value_size * (a.out_bf16 ? 2 : 4);
  for (int64_t token = a.tile_start[tile]; token < a.tile_stop[tile]; ++token) {
    fetch<1>(static_cast<const char*>(a.out) + (token * a.key_heads + head) * bytes, bytes);
  }
}

// Pack keys and values of a chunk's slots as operands; empty slots become zeros.
template <typename T, int TERMS>
void pack_keys(const AttentionArgs& a, int64_t head, int64_t chunk) {
  const int64_t key_term = a.key_heads * a.slots * a.padded_size;
  const int64_t value_term = a.key_heads * a.slots * a.padded_value_size;
  T* keys = static_cast<T*>(a.packed_keys) + (head * a.slots + chunk * kStrip) * a.padded_size;
  T* values = static_cast<T*>(a.packed_values) + (head * a.slots + chunk * kStrip) * a.padded_value_size;
  alignas(64) T staged[TERMS * kStrip * kMaxHeadSize];
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
