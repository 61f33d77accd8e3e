// A block of rows times strips of a packed weight.
//
// The weight is packed once, 32 of its rows a strip, and is the second operand of the product; the inputs are the first,
// rounded (or split) row by row into the workspace. So a product's result lies as the output does and is stored there.

constexpr int64_t kDepth = 288; // 18 KB of a strip, and as much of the rows that go by

// Up to 32 rows of `source` from `first` on as operand rows, zeros for those that are missing.
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

// The same with each 32 columns apart, [padded / 32][32][32]: what one step of a product reads then lies together, and
// 32 rows of any depth do not compete for a few sets of the cache.
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

template <typename T, int TW, int TI>
void linear(const LinearArgs& a, int64_t block, int64_t slice, void* workspace) {
  const int64_t staged_term = a.row_block * a.padded_size, packed_strip = kStrip * a.padded_size;
  T* staged = static_cast<T*>(workspace);
  float* tile = reinterpret_cast<float*>(static_cast<char*>(workspace) +
                                         round_up(TI * staged_term * static_cast<int64_t>(sizeof(T)), 64));
  const int64_t begin = block * a.row_block, rows = lesser(a.row_block, a.rows - begin);
  for (int64_t row = 0; row < rows; row += kStrip) {
    stage_columns<T, TI>(a.input, begin + row, lesser(kStrip, rows - row), a.size, a.padded_size,
                         staged + row * a.padded_size, staged_term);
  }
  // A chunk of the depth of a strip stays in the first cache while all rows go by. The sums wait in the output between
  // chunks; their order is the same as in one.
  const int64_t chunks = rows > 2 * kStrip ? (a.padded_size + kDepth - 1) / kDepth : 1;
  const int64_t chunk = round_up((a.padded_size + chunks - 1) / chunks, kStrip);
  const int64_t low = slice * a.slice_strips, high = lesser(low + a.slice_strips, a.strips);
  for (int64_t strip = low; strip < high; ++strip) {
    const T* weight = static_cast<const T*>(a.packed) + strip * packed_strip;
    const int64_t first = strip * kStrip, columns = lesser(kStrip, a.width - first);
    for (int64_t from = 0; from < a.padded_size; from += chunk) {
      const int64_t depth = lesser(chunk, a.padded_size - from);
      for (int64_t row = 0; row < rows; row += kStrip) {
        const bool whole = columns == kStrip && rows - row >= kStrip; // of the output; else by way of a buffer
        if (!whole && from > 0) continue;
        const T* input = staged + row * a.padded_size;
        float* out = a.out + (begin + row) * a.width + first;
        gemm<T, TI, TW>({input + from * kStrip, staged_term}, kStrip, kStrip * kStrip,
                        {weight + from * kStrip, a.strips * packed_strip}, whole ? out : tile,
                        rows - row <= kStrip / 2 ? kStrip / 2 : kStrip,
                        whole ? depth : a.padded_size, from > 0, whole ? a.width : kStrip);
        if (whole) continue;
        for (int64_t r = 0; r < lesser(kStrip, rows - row); ++r) {
          for (int64_t c = 0; c < columns; ++c) out[r * a.width + c] = tile[r * kStrip + c];
        }
      }
    }
    if (a.bias == nullptr) continue;
    for (int64_t row = 0; row < rows; ++row) {
      float* out = a.out + (begin + row) * a.width + first;
      for (int64_t c = 0; c < columns; ++c) out[c] += a.bias[first + c];
    }
  }
}

template <typename T, int TW, int TI>
int64_t linear_workspace(const LinearArgs& a) {
  return round_up(TI * a.row_block * a.padded_size * static_cast<int64_t>(sizeof(T)), 64) +
         kStrip * kStrip * static_cast<int64_t>(sizeof(float));
}
