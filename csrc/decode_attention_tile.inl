// Attend with one row of queries over ranges of keys read where they lie, by online softmax over blocks of keys.
//
// A row that writes a text shares its keys with few other rows, so packing them, as tree_attention does, would cost
// more than the products. Products are fp32 for any stored type. The query heads of one key head read its keys
// together, kMostGroups at a time.

constexpr int64_t kRowKeys = 64; // keys of a block, whose scores and weights stay in cache
constexpr int kMostGroups = 4;

typedef uint16_t vh_u __attribute__((vector_size(FR_WIDTH * 2), aligned(2), may_alias));
typedef uint32_t vu __attribute__((vector_size(FR_WIDTH * 4)));

FR_INLINE vf read(const float* p) { return load(p); }
FR_INLINE vf read(const bf16* p) {
  return (vf)(__builtin_convertvector(*reinterpret_cast<const vh_u*>(p), vu) << 16);
}
// Load the first n of kWidth values, then zeros.
template <typename T>
FR_INLINE vf read_some(const T* p, int64_t n) {
  alignas(64) T part[kWidth] = {};
  for (int64_t i = 0; i < n; ++i) part[i] = p[i];
  return read(part);
}
FR_INLINE float total_of(vf x) {
#if FR_AVX512
  return _mm512_reduce_add_ps((__m512)x);
#elif FR_NEON
  return vaddvq_f32((float32x4_t)x);
#else
  float sum = 0.0f;
  for (int i = 0; i < kWidth; ++i) sum += x[i];
  return sum;
#endif
}
FR_INLINE float greatest_of(vf x) {
#if FR_AVX512
  return _mm512_reduce_max_ps((__m512)x);
#else
  float most = x[0];
  for (int i = 1; i < kWidth; ++i) most = x[i] > most ? x[i] : most;
  return most;
#endif
}

// The state of one key head's queries after the keys read so far.
struct RowState {
  float* queries = nullptr; // [groups][padded_size]
  float* sums = nullptr; // [groups][padded_value_size], weighted by 2^(score - maximum), scores in log2 units
  float* scores = nullptr; // [groups][kRowKeys], then the weights
  float* maximum = nullptr; // [groups]
  float* total = nullptr; // [groups]

  static int64_t layout(const DecodeAttentionArgs& a, float* base, RowState* state) {
    int64_t at = 0; // floats
    const auto take = [&](float*& pointer, int64_t count) {
      if (base != nullptr) pointer = base + at;
      at = round_up(at + count, 16);
    };
    RowState none;
    RowState& s = state != nullptr ? *state : none;
    take(s.queries, a.groups * a.padded_size);
    take(s.sums, a.groups * a.padded_value_size);
    take(s.scores, a.groups * kRowKeys);
    take(s.maximum, a.groups);
    take(s.total, a.groups);
    return at * static_cast<int64_t>(sizeof(float));
  }
};

// Multiply keys [count][stride] by G queries: [G][kRowKeys].
template <typename T, int G>
FR_INLINE void multiply_keys(const T* keys, int64_t stride, int64_t count, int64_t size, const float* queries,
                             int64_t query_stride, float* scores) {
  for (int64_t j = 0; j < count; ++j) {
    const T* key = keys + j * stride;
    vf sums[G] = {};
    int64_t c = 0;
    for (; c + kWidth <= size; c += kWidth) {
      const vf x = read(key + c);
#pragma GCC unroll 4
      for (int g = 0; g < G; ++g) sums[g] += x * load(queries + g * query_stride + c);
    }
    if (c < size) {
      const vf x = read_some(key + c, size - c);
#pragma GCC unroll 4
      for (int g = 0; g < G; ++g) sums[g] += x * load(queries + g * query_stride + c);
    }
    for (int g = 0; g < G; ++g) scores[g * kRowKeys + j] = total_of(sums[g]);
  }
}

// sums [G][sum_stride] += weights [G][kRowKeys] times C vectors of values [count][stride].
template <typename T, int G, int C>
FR_INLINE void add_values(const T* values, int64_t stride, int64_t count, const float* weights, float* sums,
                          int64_t sum_stride) {
  vf held[G][C];
#pragma GCC unroll 4
  for (int g = 0; g < G; ++g) {
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) held[g][c] = load(sums + g * sum_stride + c * kWidth);
  }
  for (int64_t j = 0; j < count; ++j) {
    vf x[C];
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) x[c] = read(values + j * stride + c * kWidth);
#pragma GCC unroll 4
    for (int g = 0; g < G; ++g) {
      const vf weight = fill(weights[g * kRowKeys + j]);
#pragma GCC unroll 4
      for (int c = 0; c < C; ++c) held[g][c] += weight * x[c];
    }
  }
#pragma GCC unroll 4
  for (int g = 0; g < G; ++g) {
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) store(sums + g * sum_stride + c * kWidth, held[g][c]);
  }
}

template <typename T, int G>
FR_INLINE void weigh_values(const T* values, int64_t stride, int64_t count, int64_t size, const float* weights,
                            float* sums, int64_t sum_stride) {
  constexpr int C = G > 2 ? 2 : 4; // enough sums to hide the latency of additions, few enough for registers
  int64_t c = 0;
  for (; c + C * kWidth <= size; c += C * kWidth) {
    add_values<T, G, C>(values + c, stride, count, weights, sums + c, sum_stride);
  }
  for (; c + kWidth <= size; c += kWidth) add_values<T, G, 1>(values + c, stride, count, weights, sums + c, sum_stride);
  if (c == size) return;
  for (int64_t j = 0; j < count; ++j) {
    const vf x = read_some(values + j * stride + c, size - c);
    for (int g = 0; g < G; ++g) {
      float* at = sums + g * sum_stride + c;
      store(at, load(at) + fill(weights[g * kRowKeys + j]) * x);
    }
  }
}

// Neighbouring keys of a block.
struct Piece {
  const void *keys, *values; // of the first
  int64_t key_stride, value_stride, count, at; // at: place of the first in the block
  int64_t offset; // position of the first less that of the row, with slopes
};

// Up to kRowKeys keys of a row, which may lie in several ranges. Blocks are cut by the number of keys before them, not by
// ranges, so that the sums of a row do not depend on where other texts branch off its own.
struct Block {
  Piece pieces[kRowKeys];
  int64_t count = 0, keys = 0;
};

// Turn the scores of one query head into weights, and raise its maximum if a score exceeds it.
FR_INLINE void weigh_scores(const DecodeAttentionArgs& a, const RowState& s, const Block& block, int64_t head,
                            int64_t group) {
  float* scores = s.scores + group * kRowKeys;
  const int64_t count = block.keys, padded = round_up(count, kWidth);
  for (int64_t j = count; j < padded; ++j) scores[j] = 0.0f;
  transform_scores(scores, padded, a.scale, a.softcap);
  for (int64_t i = 0; a.slopes != nullptr && i < block.count; ++i) {
    const Piece& p = block.pieces[i];
    const float slope = a.slopes[head * a.groups + group];
    for (int64_t j = 0; j < p.count; ++j) scores[p.at + j] += slope * static_cast<float>(p.offset + j);
  }
  for (int64_t j = count; j < padded; ++j) scores[j] = kMinusInfinity;
  vf most = fill(kMinusInfinity);
  for (int64_t j = 0; j < padded; j += kWidth) {
    const vf x = load(scores + j) * fill(kLog2E);
    store(scores + j, x);
    most = larger(most, x);
  }
  const float greatest = greatest_of(most);
  if (greatest > s.maximum[group]) {
    const vf factor = exp2v<6>(fill(s.maximum[group] - greatest));
    float* sums = s.sums + group * a.padded_value_size;
    for (int64_t c = 0; c < a.padded_value_size; c += kWidth) store(sums + c, load(sums + c) * factor);
    s.total[group] *= factor[0];
    s.maximum[group] = greatest;
  }
  vf total{};
  for (int64_t j = 0; j < padded; j += kWidth) {
    const vf weight = exp2v<6>(load(scores + j) - fill(s.maximum[group]));
    total += weight;
    store(scores + j, weight);
  }
  s.total[group] += total_of(total);
}

template <typename T, int G>
FR_INLINE void score_and_weigh(const DecodeAttentionArgs& a, const RowState& s, const Block& block, int64_t head,
                               int64_t first) {
  float* scores = s.scores + first * kRowKeys;
  for (int64_t i = 0; i < block.count; ++i) {
    const Piece& p = block.pieces[i];
    multiply_keys<T, G>(static_cast<const T*>(p.keys), p.key_stride, p.count, a.size, s.queries + first * a.padded_size,
                        a.padded_size, scores + p.at);
  }
  for (int g = 0; g < G; ++g) weigh_scores(a, s, block, head, first + g);
  for (int64_t i = 0; i < block.count; ++i) {
    const Piece& p = block.pieces[i];
    weigh_values<T, G>(static_cast<const T*>(p.values), p.value_stride, p.count, a.value_size, scores + p.at,
                       s.sums + first * a.padded_value_size, a.padded_value_size);
  }
}

template <typename T>
FR_INLINE void attend_block(const DecodeAttentionArgs& a, const RowState& s, const Block& block, int64_t head) {
  int64_t group = 0;
  for (; group + kMostGroups <= a.groups; group += kMostGroups) {
    score_and_weigh<T, kMostGroups>(a, s, block, head, group);
  }
  switch (a.groups - group) {
    case 1: return score_and_weigh<T, 1>(a, s, block, head, group);
    case 2: return score_and_weigh<T, 2>(a, s, block, head, group);
    case 3: return score_and_weigh<T, 3>(a, s, block, head, group);
  }
}

// Return 1 / (total + e^sink / 2^maximum).
FR_INLINE float share_of(float total, float maximum, float sink) {
  if (sink == kMinusInfinity) return 1.0f / total;
  const double power = static_cast<double>(sink) / kLn2Wide - static_cast<double>(maximum);
  return static_cast<float>(1 / (static_cast<double>(total) + __builtin_exp2(power)));
}

void attend_row(const DecodeAttentionArgs& a, int64_t row, int64_t head, void* workspace) {
  RowState s;
  RowState::layout(a, static_cast<float*>(workspace), &s);
  for (int64_t g = 0; g < a.groups; ++g) {
    load_row<float, 1>(row_of(a.query, row, head * a.groups + g), a.query.bf16, a.size, a.padded_size,
                       s.queries + g * a.padded_size, 0);
    s.maximum[g] = kMinusInfinity;
    s.total[g] = 0.0f;
  }
  std::memset(s.sums, 0, a.groups * a.padded_value_size * sizeof(float));
  Block block;
  const auto attend = [&] {
    if (block.keys == 0) return;
    a.keys[0].bf16 ? attend_block<bf16>(a, s, block, head) : attend_block<float>(a, s, block, head);
    block.count = block.keys = 0;
  };
  for (int32_t r = a.row_ptr[row]; r < a.row_ptr[row + 1]; ++r) {
    const Source &key = a.keys[a.part[r]], &value = a.values[a.part[r]];
    for (int64_t first = a.start[r]; first < a.stop[r];) {
      const int64_t count = lesser(kRowKeys - block.keys, a.stop[r] - first);
      block.pieces[block.count++] = {row_of(key, first, head), row_of(value, first, head), key.token_stride,
                                     value.token_stride, count, block.keys,
                                     a.slopes != nullptr ? a.offset[r] + first - a.start[r] : 0};
      block.keys += count;
      first += count;
      if (block.keys == kRowKeys) attend();
    }
  }
  attend();
  for (int64_t g = 0; g < a.groups; ++g) {
    const int64_t at = row * a.heads + head * a.groups + g;
    const bool any = s.total[g] != 0.0f; // the maximum would miss a NaN
    const float sink = a.sinks == nullptr ? kMinusInfinity : a.sinks[head * a.groups + g];
    const float share = any ? share_of(s.total[g], s.maximum[g], sink) : 0.0f;
    for (int64_t c = 0; c < a.value_size; ++c) a.out[at * a.value_size + c] = s.sums[g * a.padded_value_size + c] * share;
    const float lse = any ? s.maximum[g] * kLn2 + std::log(s.total[g]) : kMinusInfinity;
    a.lse[at] = a.sinks == nullptr ? lse : static_cast<float>(log_add(static_cast<double>(lse), static_cast<double>(sink)));
  }
}

int64_t attend_row_workspace(const DecodeAttentionArgs& a) { return RowState::layout(a, nullptr, nullptr); }
