// Multiply a block of rows by strips of a packed weight.
//
// The weight is packed once in strips of 32 rows and is the second operand of the product. The inputs are the first,
// rounded (or written as two terms) row by row into the workspace. So a product has the layout of the output and is
// stored there directly.

constexpr int64_t kLine = 64; // bytes
constexpr int64_t kDepth = 288; // 18 KB of a strip, and as much of the rows

// Load up to 32 rows of `source` from `first` on as operand rows, with zeros for missing rows.
template <typename T, int TERMS>
FR_INLINE void stage_rows(const Source& source, int64_t first, int64_t count, int64_t size, int64_t padded, T* out,
                          int64_t term_stride) {
  for (int64_t i = 0; i < kStrip; ++i) {
    T* row = out + i * padded;
    if (i < count) {
      load_row<T, TERMS>(row_of(source, first + i, 0), source.bf16, size, padded, row, term_stride);
    } else {
      for (int k = 0; k < TERMS; ++k) std::memset(row + k * term_stride, 0, padded * sizeof(T));
    }
  }
}

template <typename T, int TW>
void pack_weight(const PackArgs& a, int64_t strip, void* workspace) {
  T* staging = static_cast<T*>(workspace);
  const int64_t size = kStrip * a.padded_size;
  stage_rows<T, TW>(a.weight, strip * kStrip, lesser(kStrip, a.width - strip * kStrip), a.size, a.padded_size, staging,
                    size);
  for (int k = 0; k < TW; ++k) {
    pack_strip<T>(staging + k * size, a.padded_size, a.padded_size,
                  static_cast<T*>(a.packed) + (k * a.strips + strip) * size);
  }
}

template <typename T, int TW>
int64_t pack_weight_workspace(const PackArgs& a) {
  return TW * kStrip * a.padded_size * static_cast<int64_t>(sizeof(T));
}

// Do the same with every 32 columns together, [padded / 32][32][32]: the data of one step of a product are then
// contiguous, and 32 rows of any depth do not compete for a few sets of the cache.
template <typename T, int TERMS>
FR_INLINE void stage_columns(const Source& source, int64_t first, int64_t count, int64_t size, int64_t padded, T* out,
                             int64_t term_stride) {
  const int64_t width = source.bf16 ? 2 : 4;
  for (int64_t i = 0; i < kStrip; ++i) {
    const char* row = i < count ? static_cast<const char*>(row_of(source, first + i, 0)) : nullptr;
    for (int64_t k = 0; k < padded; k += kStrip) {
      T* to = out + k * kStrip + i * kStrip;
      if (row != nullptr) {
        load_row<T, TERMS>(row + k * width, source.bf16, lesser(kStrip, size - k), kStrip, to, term_stride);
      } else {
        for (int t = 0; t < TERMS; ++t) std::memset(to + t * term_stride, 0, kStrip * sizeof(T));
      }
    }
  }
}

// The rows as operands: in the input itself, or staged.
template <typename T, int TI>
struct Rows {
  const T* direct; // whole strips in the input, null if all are staged
  int64_t direct_stride, direct_rows;
  const T* staged; // the others, [padded / 32][32][32] each
  int64_t padded, term;
};

// Multiply rows begin to end (multiples of 32, or the end) by one strip of the weight, into `out` (or add to it).
// A chunk of a strip's depth stays in the first cache while all rows pass. Between chunks the sums stay in the output;
// their order is that of one chunk. Meanwhile the next chunk is prefetched: the weight is larger than the caches near
// the core, and each row of tiles would wait for its part of it.
template <typename T, int TW, int TI>
FR_INLINE void multiply_strip(const LinearArgs& a, const Rows<T, TI>& rows, int64_t strip, int64_t begin, int64_t end,
                              float* out, int64_t out_stride, bool add, int64_t next_strip) {
  const int64_t packed_strip = kStrip * a.padded_size;
  const T* weight = static_cast<const T*>(a.packed) + strip * packed_strip;
  const int64_t chunks = end - begin > 2 * kStrip ? (a.padded_size + kDepth - 1) / kDepth : 1;
  const int64_t chunk = round_up((a.padded_size + chunks - 1) / chunks, kStrip);
  for (int64_t from = 0; from < a.padded_size; from += chunk) {
    const int64_t depth = lesser(chunk, a.padded_size - from);
    const Operand<T, TW> right{weight + from * kStrip, a.strips * packed_strip};
    const char* next = reinterpret_cast<const char*>(
        from + chunk < a.padded_size ? weight + (from + chunk) * kStrip
                                     : static_cast<const T*>(a.packed) + lesser(next_strip, a.strips - 1) * packed_strip);
    const int64_t lines = lesser(chunk, a.padded_size) * kStrip * static_cast<int64_t>(sizeof(T)) / kLine;
    const int64_t steps = (end - begin + kStrip - 1) / kStrip, share = (lines + steps - 1) / steps;
    // For a few rows a vector unit reads a strip of weights once, in order, and the hardware prefetches it; further
    // prefetches only delay it.
    const bool ahead = kTiles<T> || steps > 2;
    for (int64_t row = begin; row < end; row += kStrip) {
      const int64_t line = (row - begin) / kStrip * share;
      const int64_t last = ahead ? lesser(line + share, lines) : line;
      for (int64_t i = line; i < last; ++i) __builtin_prefetch(next + i * kLine, 0, 2);
      float* to = out + (row - begin) * out_stride;
      if (row < rows.direct_rows) {
        gemm<T, TI, TW>({rows.direct + row * rows.direct_stride + from, 0}, rows.direct_stride, kStrip, right, to,
                        kStrip, depth, add || from > 0, out_stride);
      } else {
        const T* left = rows.staged + (row - rows.direct_rows) * rows.padded;
        gemm_few<T, TI, TW>({left + from * kStrip, rows.term}, kStrip, kStrip * kStrip, right, to,
                            computed_rows<T>(lesser(end - row, kStrip)), depth, add || from > 0, out_stride);
      }
    }
  }
}

// Store the products, or add them to the output. Rows and columns that do not fill a strip go through the buffer and
// are summed in the same order.
template <typename T, int TW, int TI>
FR_INLINE void store_strip(const LinearArgs& a, const Rows<T, TI>& operand, int64_t strip, int64_t begin, int64_t rows,
                           float* buffer) {
  const bool add = a.after == After::add;
  const int64_t first = strip * kStrip, columns = lesser(kStrip, a.width - first);
  const int64_t whole = columns == kStrip ? rows / kStrip * kStrip : 0;
  float* out = static_cast<float*>(a.out) + begin * a.out_stride + first;
  if (whole > 0) multiply_strip<T, TW, TI>(a, operand, strip, 0, whole, out, a.out_stride, add, strip + 1);
  if (whole < rows) {
    for (int64_t r = whole; add && r < rows; ++r) {
      for (int64_t c = 0; c < columns; ++c) buffer[(r - whole) * kStrip + c] = out[r * a.out_stride + c];
    }
    multiply_strip<T, TW, TI>(a, operand, strip, whole, rows, buffer, kStrip, add, strip + 1);
    for (int64_t r = whole; r < rows; ++r) {
      for (int64_t c = 0; c < columns; ++c) out[r * a.out_stride + c] = buffer[(r - whole) * kStrip + c];
    }
  }
  if (a.bias == nullptr) return;
  for (int64_t r = 0; r < rows; ++r) {
    float* to = out + r * a.out_stride;
    for (int64_t c = 0; c < columns; ++c) to[c] += a.bias[first + c];
  }
}

template <typename O>
FR_INLINE void gate_strip(const LinearArgs& a, int64_t strip, int64_t begin, int64_t rows, const float* buffer) {
  const int64_t first = strip * kStrip, half = a.width / 2;
  for (int64_t r = 0; r < rows; ++r) {
    const float* from = buffer + r * 2 * kStrip;
    O* to = static_cast<O*>(a.out) + (begin + r) * a.out_stride + first;
    for (int64_t c = 0; c < kStrip; c += kWidth) {
      vf gate = load(from + c), up = load(from + kStrip + c);
      if (a.bias != nullptr) {
        gate += load(a.bias + first + c);
        up += load(a.bias + half + first + c);
      }
      store_some(to + c, activate(a.activation, gate) * up, kWidth);
    }
  }
}

template <typename T, int TW, int TI>
void linear(const LinearArgs& a, int64_t block, int64_t slice, void* workspace) {
  const int64_t term = a.row_block * a.padded_size;
  T* staged = static_cast<T*>(workspace);
  float* buffer = reinterpret_cast<float*>(static_cast<char*>(workspace) +
                                           round_up(TI * term * static_cast<int64_t>(sizeof(T)), 64));
  const int64_t begin = block * a.row_block, rows = lesser(a.row_block, a.rows - begin);
  Rows<T, TI> operand{nullptr, 0, 0, staged, a.padded_size, term};
  if constexpr (std::is_same_v<T, bf16> && TI == 1) {
    if (a.input.bf16 && a.size == a.padded_size) {
      operand.direct = static_cast<const bf16*>(row_of(a.input, begin, 0));
      operand.direct_stride = a.input.token_stride;
      operand.direct_rows = rows / kStrip * kStrip;
    }
  }
  for (int64_t row = operand.direct_rows; row < rows; row += kStrip) {
    stage_columns<T, TI>(a.input, begin + row, lesser(kStrip, rows - row), a.size, a.padded_size,
                         staged + (row - operand.direct_rows) * a.padded_size, term);
  }
  const int64_t strips = a.after == After::gate ? a.strips / 2 : a.strips;
  const int64_t low = slice * a.slice_strips, high = lesser(low + a.slice_strips, strips);
  for (int64_t strip = low; strip < high; ++strip) {
    if (a.after != After::gate) {
      store_strip<T, TW, TI>(a, operand, strip, begin, rows, buffer);
      continue;
    }
    multiply_strip<T, TW, TI>(a, operand, strip, 0, rows, buffer, 2 * kStrip, false, strips + strip);
    multiply_strip<T, TW, TI>(a, operand, strips + strip, 0, rows, buffer + kStrip, 2 * kStrip, false, strip + 1);
    a.out_bf16 ? gate_strip<bf16>(a, strip, begin, rows, buffer) : gate_strip<float>(a, strip, begin, rows, buffer);
  }
}

template <typename T, int TW, int TI>
int64_t linear_workspace(const LinearArgs& a) {
  return round_up(TI * a.row_block * a.padded_size * static_cast<int64_t>(sizeof(T)), 64) +
         2 * kStrip * a.row_block * static_cast<int64_t>(sizeof(float));
}
