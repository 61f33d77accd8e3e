// Write the results of a tile, or the state of a part of its keys, and join such parts.

// Return log(e^a + e^b).
FR_INLINE double log_add(double a, double b) {
  const double most = a > b ? a : b;
  if (most == static_cast<double>(kMinusInfinity)) return most;
  return most + __builtin_log1p(__builtin_exp(-__builtin_fabs(a - b)));
}

// Return 1 / (total + e^sink / 2^maximum). Powers of two are split off and applied exactly, so that the result does not
// depend on the maximum that a lane happens to have.
FR_INLINE float inverse_with_sink(float total, float maximum, float sink) {
  if (sink == kMinusInfinity) return 1 / total;
  const double power = static_cast<double>(sink) / kLn2Wide, whole_power = __builtin_floor(power);
  double exponent = whole_power - static_cast<double>(maximum);
  exponent = exponent > 2000 ? 2000 : exponent < -2000 ? -2000 : exponent;
  const double term = __builtin_ldexp(__builtin_exp2(power - whole_power), static_cast<int>(exponent));
  return static_cast<float>(1 / (static_cast<double>(total) + term));
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
  for (int lane = 0; lane < kStrip; ++lane) {
    const int64_t row = strip * kStrip + lane;
    inverse[lane] = !(total[lane] > 0) ? 0.0f
                    : a.sinks == nullptr
                        ? 1 / total[lane]
                        : inverse_with_sink(total[lane], t.maximum[row], a.sinks[head * a.groups + row % a.groups]);
  }
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
    const int64_t query_head = head * a.groups + group, index = token * a.heads + query_head;
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
      int exponent; // separate, so that the result does not depend on the reference either
      const float fraction = __builtin_frexpf(mass[lane], &exponent);
      double lse = (static_cast<double>(t.maximum[row]) + exponent) * kLn2Wide + __builtin_log(fraction);
      if (mass[lane] == 0) lse = static_cast<double>(kMinusInfinity);
      a.lse[index] = static_cast<float>(a.sinks == nullptr ? lse : log_add(lse, static_cast<double>(a.sinks[query_head])));
    }
  }
}

// Locate the state of a part of a tile's strip.
struct Part {
  float *sums, *maximum, *total;
  FR_MEMBER Part(const AttentionArgs& a, int64_t tile, int64_t head, int64_t part, int64_t strip) {
    const int64_t at = (((tile * a.key_heads + head) * a.parts + part) * (a.tile_rows / kStrip) + strip) * kStrip;
    sums = a.part_sums + at * a.padded_value_size;
    maximum = a.part_maximum + at;
    total = a.part_total + 2 * at;
  }
};

// Sum the segments in the order of a single task.
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
        // NaN scores raise no maximum and still count.
        seen |= (own > fill(kMinusInfinity)) | (load(state.total + v * kWidth) != vf{});
        for (int64_t at = v * kWidth; at < kTotals; at += kStrip) {
          store(total + at, load(total + at) + load(state.total + at) * scaling[v]);
        }
      }
      if (!any(seen)) continue; // its sums are unset
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
