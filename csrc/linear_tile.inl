// A block of rows times strips of a packed weight.
//
// The weight is packed once, 32 of its rows a strip, and is the second operand of the product; the inputs are the first,
// rounded (or split) row by row into the workspace. So a product's result lies as the output does and is stored there.

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

template <typename T, int TW, int TI>
void linear(const LinearArgs& a, int64_t block, int64_t slice, void* workspace) {
  const int64_t staged_term = a.row_block * a.padded_size, packed_strip = kStrip * a.padded_size;
  T* staged = static_cast<T*>(workspace);
  float* tile = reinterpret_cast<float*>(static_cast<char*>(workspace) +
                                         round_up(TI * staged_term * static_cast<int64_t>(sizeof(T)), 64));
  const int64_t begin = block * a.row_block, rows = lesser(a.row_block, a.rows - begin);
  for (int64_t row = 0; row < rows; row += kStrip) {
    stage_rows<T, TI>(a.input, begin + row, lesser(kStrip, rows - row), a.size, a.padded_size,
                      staged + row * a.padded_size, staged_term);
  }
  const int64_t low = slice * a.slice_strips, high = lesser(low + a.slice_strips, a.strips);
  for (int64_t strip = low; strip < high; ++strip) {
    const Operand<T, TW> weight{static_cast<const T*>(a.packed) + strip * packed_strip, a.strips * packed_strip};
    const int64_t first = strip * kStrip, columns = lesser(kStrip, a.width - first);
    for (int64_t row = 0; row < rows; row += kStrip) {
      const Operand<T, TI> input{staged + row * a.padded_size, staged_term};
      const int64_t filled = lesser(kStrip, rows - row);
      float* out = a.out + (begin + row) * a.width + first;
      if (a.bias == nullptr && columns == kStrip && filled == kStrip) {
        gemm<T, TI, TW>(input, a.padded_size, kStrip, weight, out, kStrip, a.padded_size, false, a.width);
        continue;
      }
      gemm<T, TI, TW>(input, a.padded_size, kStrip, weight, tile, kStrip, a.padded_size, false);
      for (int64_t r = 0; r < filled; ++r) {
        const float* from = tile + r * kStrip;
        for (int64_t c = 0; c < columns; ++c) out[r * a.width + c] = from[c] + (a.bias != nullptr ? a.bias[first + c] : 0.0f);
      }
    }
  }
}

template <typename T, int TW, int TI>
int64_t linear_workspace(const LinearArgs& a) {
  return round_up(TI * a.row_block * a.padded_size * static_cast<int64_t>(sizeof(T)), 64) +
         kStrip * kStrip * static_cast<int64_t>(sizeof(float));
}
