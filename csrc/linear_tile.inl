// A block of rows (several strips) times a slice of a weight's rows, 32 at a time.
//
// As everywhere the product is transposed: 32 weight rows are the walked operand, taken where they lie when their type
// and padding allow, and a strip of 32 inputs the packed one. The 4 KB of a tile are transposed into the output.

template <typename T, int TW, int TI>
struct LinearWork {
  T* input; // [TI][strips] packed [padded_size][32]
  T* staging; // [max(TW, TI)][32][padded_size]
  float* tile; // [32 weight rows][32 inputs]
  float* turned; // [32 inputs][32 weight rows]

  static int64_t layout(const LinearArgs& a, char* base, LinearWork* out) {
    int64_t at = 0;
    const auto take = [&](auto*& pointer, int64_t count) {
      using Item = std::remove_reference_t<decltype(*pointer)>;
      if (base != nullptr) pointer = reinterpret_cast<Item*>(base + at);
      at = round_up(at + count * static_cast<int64_t>(sizeof(Item)), 64);
    };
    LinearWork none;
    LinearWork& t = out != nullptr ? *out : none;
    take(t.input, TI * a.row_block * a.padded_size);
    take(t.staging, (TW > TI ? TW : TI) * kStrip * a.padded_size);
    take(t.tile, kStrip * kStrip);
    take(t.turned, kStrip * kStrip);
    return at;
  }
};

// Up to 32 rows of `source` from `first` on as operand rows, zeros for those that are missing.
template <typename T, int TERMS>
FR_INLINE void stage_rows(const Source& source, int64_t first, int64_t count, int64_t size, int64_t padded, T* out) {
  const int64_t term = kStrip * padded;
  for (int64_t i = 0; i < kStrip; ++i) {
    T* row = out + i * padded;
    if (i < count) {
      load_row<T, TERMS>(row_of(source, first + i, 0), source.bf16, size, padded, row, term);
    } else {
      for (int k = 0; k < TERMS; ++k) std::memset(row + k * term, 0, padded * sizeof(T));
    }
  }
}

template <typename T, int TW, int TI>
void linear(const LinearArgs& a, int64_t block, int64_t slice, void* workspace) {
  LinearWork<T, TW, TI> t;
  LinearWork<T, TW, TI>::layout(a, static_cast<char*>(workspace), &t);
  const int64_t begin = block * a.row_block, rows = lesser(a.row_block, a.rows - begin);
  const int64_t strips = (rows + kStrip - 1) / kStrip;
  const int64_t packed_strip = a.padded_size * kStrip, packed_term = a.row_block * a.padded_size;
  for (int64_t strip = 0; strip < strips; ++strip) {
    stage_rows<T, TI>(a.input, begin + strip * kStrip, lesser(kStrip, rows - strip * kStrip), a.size, a.padded_size,
                      t.staging);
    for (int k = 0; k < TI; ++k) {
      pack_strip<T>(t.staging + k * packed_strip, a.padded_size, a.padded_size,
                    t.input + k * packed_term + strip * packed_strip);
    }
  }
  constexpr bool bf16_operand = !std::is_same_v<T, float>;
  const bool in_place = TW == 1 && a.weight.bf16 == bf16_operand && a.size == a.padded_size;
  const int64_t low = slice * a.slice_size, high = lesser(low + a.slice_size, a.width);
  for (int64_t first = low; first < high; first += kStrip) {
    const int64_t count = lesser(kStrip, high - first);
    Operand<T, TW> weight{t.staging, packed_strip};
    int64_t stride = a.padded_size;
    if (in_place && count == kStrip) {
      weight = {static_cast<const T*>(row_of(a.weight, first, 0)), 0};
      stride = a.weight.token_stride;
    } else {
      stage_rows<T, TW>(a.weight, first, count, a.size, a.padded_size, t.staging);
    }
    for (int64_t strip = 0; strip < strips; ++strip) {
      gemm<T, TW, TI>(weight, stride, kStrip, {t.input + strip * packed_strip, packed_term}, t.tile, kStrip,
                      a.padded_size, false);
      if (a.bias != nullptr) {
        for (int64_t r = 0; r < count; ++r) {
          const vf bias = fill(a.bias[first + r]);
          for (int v = 0; v < kVectors; ++v) {
            float* at = t.tile + r * kStrip + v * kWidth;
            store(at, load(at) + bias);
          }
        }
      }
      const int64_t filled = lesser(kStrip, rows - strip * kStrip);
      float* out = a.out + (begin + strip * kStrip) * a.width + first;
      if (count == kStrip && filled == kStrip) {
        for (int64_t i = 0; i < kStrip; i += 16) {
          for (int64_t j = 0; j < kStrip; j += 16) {
            transpose16(t.tile + i * kStrip + j, kStrip, out + j * a.width + i, a.width);
          }
        }
      } else {
        transpose_group(t.tile, kStrip, t.turned);
        for (int64_t r = 0; r < filled; ++r) std::memcpy(out + r * a.width, t.turned + r * kStrip, count * sizeof(float));
      }
    }
  }
}

template <typename T, int TW, int TI>
int64_t linear_workspace(const LinearArgs& a) {
  return LinearWork<T, TW, TI>::layout(a, nullptr, nullptr);
}
