// Linear attention over one chain of tokens, token by token, for one head and some columns of its state:
//
//     S = exp(g) S;  S += k w^T;  o = S^T q    with w = beta (v - S^T k) for the delta rule, else w = v
//
// Columns of S do not depend on each other. A block of columns stays in the first cache while some tokens pass, and each
// token reads and writes it once: while S is updated, the sums S^T (exp(g') k') are formed, which the next token needs.
// Sums run over the rows of S in order, so results depend on the path alone, whatever the chains, the chunks and the
// division of columns among threads.

constexpr int64_t kScanTokens = 32; // in a chunk
constexpr int64_t kScanColumns = 2 * kWidth; // in a block

// A chunk of tokens: rows of `stride` values. With a gate a channel `decay` has such rows, else one value a token.
struct ScanChunk {
  float *query, *key, *probe, *decay; // probe: exp(g) k
  int64_t stride;
};

FR_INLINE float squares_of(const float* x, int64_t n) {
  vf sum = {};
  for (int64_t i = 0; i < n; i += kWidth) {
    const vf v = load_some(x + i, n - i);
    sum += v * v;
  }
  return sum_of(sum);
}

FR_INLINE vf expv(vf x) { return exp2v<6>(x * fill(kLog2E)); }

FR_INLINE const float* floats_of(const Source& s, int64_t token, int64_t head) {
  return static_cast<const float*>(s.data) + token * s.token_stride + head * s.head_stride;
}

template <bool CHANNELS>
FR_INLINE void stage_token(const ScanArgs& a, const ScanTask& t, int64_t token, int64_t place, const ScanChunk& c) {
  const float* query = floats_of(a.query, token, t.head / a.groups);
  const float* key = floats_of(a.key, token, t.head / a.groups);
  const float* gate = floats_of(a.gate, token, t.head);
  const float* value = floats_of(a.value, token, t.head) + t.column;
  for (int64_t i = 0; i < t.columns; i += 16) __builtin_prefetch(value + i);
  float query_factor = a.scale, key_factor = 1.0f;
  if (a.unit) {
    query_factor /= __builtin_sqrtf(squares_of(query, a.size) + a.epsilon);
    key_factor /= __builtin_sqrtf(squares_of(key, a.size) + a.epsilon);
  }
  vf decay = expv(fill(gate[0]));
  if constexpr (!CHANNELS) c.decay[place] = decay[0];
  for (int64_t i = 0; i < a.size; i += kWidth) {
    const int64_t n = a.size - i, at = place * c.stride + i;
    const vf k = load_some(key + i, n) * fill(key_factor);
    if constexpr (CHANNELS) {
      decay = expv(load_some(gate + i, n));
      store(c.decay + at, decay);
    }
    store(c.query + at, load_some(query + i, n) * fill(query_factor));
    store(c.key + at, k);
    store(c.probe + at, k * decay);
  }
}

// Let `count` staged tokens from `token` on pass one block of columns.
template <bool DELTA, bool CHANNELS>
FR_INLINE void scan_block(const ScanArgs& a, const ScanTask& t, const ScanChunk& c, int64_t token, int64_t count,
                          int64_t column, float* state) {
  constexpr int N = kScanColumns / kWidth;
  const int64_t columns = t.column + t.columns - column;
  vf found[N] = {};
  if constexpr (DELTA) {
    for (int64_t i = 0; i < a.size; ++i) {
#pragma GCC unroll 2
      for (int n = 0; n < N; ++n) found[n] += fill(c.probe[i]) * load(state + i * kScanColumns + n * kWidth);
    }
  }
  for (int64_t j = 0; j < count; ++j) {
    const float* value = floats_of(a.value, token + j, t.head) + column;
    vf written[N];
#pragma GCC unroll 2
    for (int n = 0; n < N; ++n) {
      written[n] = load_some(value + n * kWidth, columns - n * kWidth);
      if constexpr (DELTA) written[n] = fill(*floats_of(a.beta, token + j, t.head)) * (written[n] - found[n]);
    }
    const float *query = c.query + j * c.stride, *key = c.key + j * c.stride;
    const float* next = c.probe + lesser(j + 1, count - 1) * c.stride;
    vf decay = fill(c.decay[CHANNELS ? 0 : j]), made[N] = {}, ahead[N] = {};
    for (int64_t i = 0; i < a.size; ++i) {
      if constexpr (CHANNELS) decay = fill(c.decay[j * c.stride + i]);
#pragma GCC unroll 2
      for (int n = 0; n < N; ++n) {
        float* at = state + i * kScanColumns + n * kWidth;
        const vf s = load(at) * decay + fill(key[i]) * written[n];
        store(at, s);
        made[n] += fill(query[i]) * s;
        if constexpr (DELTA) ahead[n] += fill(next[i]) * s;
      }
    }
    float* out = a.out + ((token + j) * a.heads + t.head) * a.value_size + column;
#pragma GCC unroll 2
    for (int n = 0; n < N; ++n) {
      store_some(out + n * kWidth, made[n], columns - n * kWidth);
      found[n] = ahead[n];
    }
  }
}

// Copy a block of columns of a state out of [D, Dv], with zeros if there is none, or into it.
FR_INLINE void load_state(const ScanArgs& a, const float* from, int64_t columns, float* block) {
  for (int64_t i = 0; i < a.size; ++i) {
    for (int64_t n = 0; n < kScanColumns; n += kWidth) {
      store(block + i * kScanColumns + n, from == nullptr ? vf{} : load_some(from + i * a.value_size + n, columns - n));
    }
  }
}
FR_INLINE void store_state(const ScanArgs& a, const float* block, int64_t columns, float* to) {
  for (int64_t i = 0; i < a.size; ++i) {
    for (int64_t n = 0; n < kScanColumns; n += kWidth) {
      store_some(to + i * a.value_size + n, load(block + i * kScanColumns + n), columns - n);
    }
  }
}

template <bool DELTA, bool CHANNELS>
FR_INLINE void scan_as(const ScanArgs& a, const ScanTask& t, float* workspace) {
  ScanChunk chunk{};
  chunk.stride = (a.size + kWidth - 1) / kWidth * kWidth;
  const int64_t part = kScanTokens * chunk.stride, block = a.size * kScanColumns, end = t.column + t.columns;
  chunk.query = workspace;
  chunk.key = workspace + part;
  chunk.probe = workspace + 2 * part;
  chunk.decay = workspace + 3 * part;
  float* const states = workspace + 4 * part;
  float* state = states;
  for (int64_t column = t.column; column < end; column += kScanColumns, state += block) {
    load_state(a, t.before == nullptr ? nullptr : t.before + column, end - column, state);
  }
  for (int64_t first = 0; first < t.tokens; first += kScanTokens) {
    const int64_t count = lesser(kScanTokens, t.tokens - first), token = t.start + first;
    for (int64_t j = 0; j < count; ++j) stage_token<CHANNELS>(a, t, token + j, j, chunk);
    state = states;
    for (int64_t column = t.column; column < end; column += kScanColumns, state += block) {
      scan_block<DELTA, CHANNELS>(a, t, chunk, token, count, column, state);
    }
  }
  float* const ends[] = {t.after, t.kept};
  for (float* to : ends) {
    if (to == nullptr) continue;
    state = states;
    for (int64_t column = t.column; column < end; column += kScanColumns, state += block) {
      store_state(a, state, end - column, to + column);
    }
  }
}

void scan(const ScanArgs& a, const ScanTask& t, void* workspace) {
  float* const memory = static_cast<float*>(workspace);
  if (a.beta.data == nullptr) {
    a.channels ? scan_as<false, true>(a, t, memory) : scan_as<false, false>(a, t, memory);
  } else {
    a.channels ? scan_as<true, true>(a, t, memory) : scan_as<true, false>(a, t, memory);
  }
}

int64_t scan_workspace(const ScanArgs& a, int64_t columns) {
  const int64_t stride = (a.size + kWidth - 1) / kWidth * kWidth;
  const int64_t blocks = (columns + kScanColumns - 1) / kScanColumns;
  return (4 * kScanTokens * stride + blocks * a.size * kScanColumns) * static_cast<int64_t>(sizeof(float));
}
