// Compare the CPU kernels of every instruction set of this machine with plain loops in double.
//
//     check_kernels [INSTRUCTION_SET ...]
//
// It needs no torch, so that it can be cross-compiled and run in an emulator (`make arm64`). It prints one line per
// kernel with the number of values compared and the largest error, and exits with 1 if an error exceeds its bound.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "block_packing.h"
#include "kernels.h"

namespace {

using namespace fastreader;
using Vector = std::vector<float>;
using bf16 = uint16_t;

constexpr double kFloat = 1.2e-7; // a rounding to float32, relative
constexpr double kHalf = 3.92e-3; // to bf16
constexpr float kInfinity = std::numeric_limits<float>::infinity();

constexpr const char* kModeNames[] = {"f32", "bf16", "bf16x3", "bf16x2", "widened", "scaled"};
constexpr Mode kModes[] = {Mode::f32, Mode::bf16, Mode::bf16x3, Mode::bf16x2, Mode::widened, Mode::scaled};

constexpr const char* kFormatNames[] = {"Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0",  "Q4_K",
                                         "Q5_K", "Q6_K", "Q3_K", "IQ4_NL", "IQ4_XS", "MXFP4"};
static_assert(sizeof(kFormatNames) / sizeof(kFormatNames[0]) == kBlockFormats);

const char* to_bf16(bool half) { return half ? " to bf16" : ""; }

const char* name_of(Mode mode) { return kModeNames[static_cast<int>(mode)]; }

// The same numbers with every compiler and library, unlike <random>.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed * 2 + 1) {}
  uint32_t next() {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return static_cast<uint32_t>(state_ >> 33);
  }
  float uniform() { return static_cast<float>(next()) / 1073741824.0f - 1; } // [-1, 1)
  float normal() { return uniform() + uniform() + uniform(); } // variance 1
  Vector normals(int64_t n) {
    Vector out(n);
    for (float& x : out) x = normal();
    return out;
  }

 private:
  uint64_t state_;
};

float widen(bf16 x) {
  const uint32_t u = static_cast<uint32_t>(x) << 16;
  float out;
  std::memcpy(&out, &u, 4);
  return out;
}
bf16 narrow(float x) { // to nearest even
  uint32_t u;
  std::memcpy(&u, &x, 4);
  return static_cast<bf16>((u + 0x7fff + (u >> 16 & 1)) >> 16);
}
float rounded(float x) { return widen(narrow(x)); }

// Values in the type that a kernel reads or writes, rounded to it.
struct Stored {
  bool half;
  Vector values; // as stored
  std::vector<bf16> halves;
  Stored(Vector from, bool as_bf16) : half(as_bf16), values(std::move(from)) {
    if (!half) return;
    halves.resize(values.size());
    for (size_t i = 0; i < values.size(); ++i) {
      halves[i] = narrow(values[i]);
      values[i] = widen(halves[i]);
    }
  }
  const void* data() const { return half ? static_cast<const void*>(halves.data()) : values.data(); }
};

// Memory for results; a kernel must set all of it.
struct Output {
  bool half;
  Vector floats;
  std::vector<bf16> halves;
  Output(int64_t n, bool as_bf16) : half(as_bf16) {
    half ? halves.assign(n, 0x7fc0) : floats.assign(n, std::nanf(""));
  }
  void* data() { return half ? static_cast<void*>(halves.data()) : floats.data(); }
  float operator[](int64_t i) const { return half ? widen(halves[i]) : floats[i]; }
};

// 64-byte aligned memory. The workspaces of the kernels start out as NaN, so that reading unset values shows.
class Memory {
 public:
  explicit Memory(int64_t bytes) : all_(bytes + 64, static_cast<char>(0xff)) {}
  void* get() { return reinterpret_cast<void*>((reinterpret_cast<uintptr_t>(all_.data()) + 63) / 64 * 64); }

 private:
  std::vector<char> all_;
};

// Errors of one kind of result, relative to their bounds.
struct Check {
  std::string name;
  int64_t count = 0, misses = 0;
  double error = 0, share = 0;
  void add(double got, double expected, double bound) {
    ++count;
    if (std::isnan(expected) || std::isinf(expected)) {
      misses += std::isnan(expected) ? !std::isnan(got) : got != expected;
      return;
    }
    const double off = std::fabs(got - expected);
    if (!(off <= bound)) ++misses;
    if (std::isnan(off)) return;
    error = std::max(error, off);
    share = std::max(share, off / bound);
  }
};

class Report {
 public:
  Check& operator[](const std::string& name) {
    for (Check& check : checks_) {
      if (check.name == name) return check;
    }
    checks_.push_back({name});
    return checks_.back();
  }
  // Print all checks; return the number of misses.
  int64_t print(const char* isa) const {
    int64_t misses = 0;
    for (const Check& c : checks_) {
      std::printf("%-12s %-24s %8lld values, largest error %.2e (%.2f of its bound)%s\n", isa, c.name.c_str(),
                  static_cast<long long>(c.count), c.error, c.share, c.misses > 0 ? "  MISSED" : "");
      misses += c.misses;
    }
    return misses;
  }

 private:
  std::vector<Check> checks_;
};

double activated(Activation kind, double x) {
  const double z = kind == Activation::silu ? x : 1.5957691216057308 * (x + 0.044715 * x * x * x);
  return x / (1 + std::exp(-z));
}

// The values that a mode multiplies: `values` [rows][size] as the sum of their terms, or as integers with scales.
std::vector<double> operand(const Vector& values, int64_t size, Mode mode, bool weight) {
  std::vector<double> out(values.begin(), values.end());
  if (mode == Mode::bf16 || (mode == Mode::bf16x2 && weight)) {
    for (double& x : out) x = rounded(static_cast<float>(x));
  } else if (mode == Mode::scaled) {
    for (size_t row = 0; row < values.size(); row += size) {
      for (int64_t from = 0; from < size; from += 32) {
        const int64_t to = std::min(from + 32, size);
        float left[32], most = 0;
        for (int64_t k = from; k < to; ++k) left[k - from] = values[row + k], most = std::max(most, std::fabs(values[row + k]));
        int64_t small = 0;
        for (int64_t k = 0; k < to - from; ++k) small += left[k] != 0 && std::fabs(left[k]) < most / 96;
        const int terms = !weight && small >= 16 ? 2 : 1;
        std::fill(out.begin() + row + from, out.begin() + row + to, 0.0);
        for (int term = 0; term < terms; ++term) {
          most = 0;
          for (int64_t k = 0; k < to - from; ++k) most = std::max(most, std::fabs(left[k]));
          const float factor = most > 0 ? 8191 / most : 0, scale = most > 0 ? most / 8191 : 0;
          for (int64_t k = 0; k < to - from; ++k) {
            const float rounded = std::nearbyint(left[k] * factor);
            out[row + from + k] += static_cast<double>(rounded) * scale;
            left[k] = std::fma(-rounded, scale, left[k]);
          }
        }
      }
    }
  }
  return out;
}

// Error of a product's sum relative to the sum of the absolute values of its terms.
double product_bound(Mode mode, int64_t size) {
  const double sums = kFloat * (4 + std::sqrt(static_cast<double>(size)));
  return mode == Mode::bf16x3 || mode == Mode::bf16x2 ? sums + 2e-5 : sums;
}

struct Shape {
  int64_t rows, width, size, row_block, slices;
  bool bias, half_input;
};

void check_linear(const Kernels& kernels, Mode mode, const Shape& s, After after, bool half_out, bool constant,
                  Report& report) {
  Random random(s.rows * 131 + s.width * 17 + s.size);
  const bool half_weight = mode == Mode::widened || mode == Mode::bf16x2;
  Vector input_values = random.normals(s.rows * s.size), weight_values = random.normals(s.width * s.size);
  if (constant) { // the largest sums of integers
    std::fill(input_values.begin(), input_values.end(), -0.5f);
    std::fill(weight_values.begin(), weight_values.end(), 0.25f);
  }
  Vector columns(round_up(s.size, kStrip), 1.0f);
  if (mode == Mode::scaled && !constant) { // massive inputs, small columns of the weight that meet them, and powers for those
    for (int64_t k = s.rows % 32; k < s.size; k += 32) {
      columns[k] = std::ldexp(1.0f, static_cast<int>(k % 21));
      for (int64_t r = 0; r < s.rows; r += 1 + s.rows % 3) input_values[r * s.size + k] *= columns[k];
      for (int64_t f = 0; f < s.width; ++f) weight_values[f * s.size + k] /= columns[k];
    }
  }
  const Stored input(input_values, s.half_input), weight(weight_values, half_weight);
  const Vector bias = random.normals(s.width);

  PackArgs pack{};
  pack.weight = {weight.data(), half_weight, s.size, 0};
  pack.width = s.width;
  pack.size = s.size;
  pack.padded_size = round_up(s.size, kStrip);
  pack.strips = round_up(s.width, kStrip) / kStrip;
  Memory packed(kernels.packed_bytes(pack.strips, pack.padded_size)), packing(kernels.pack_weight_workspace(pack));
  pack.packed = packed.get();
  pack.columns = columns.data();
  for (int64_t strip = 0; strip < pack.strips; ++strip) kernels.pack_weight(pack, strip, packing.get());

  LinearArgs a{};
  a.input = {input.data(), s.half_input, s.size, 0};
  a.rows = s.rows;
  a.width = s.width;
  a.size = s.size;
  a.padded_size = pack.padded_size;
  a.packed = pack.packed;
  a.strips = pack.strips;
  a.bias = s.bias ? bias.data() : nullptr;
  a.row_block = s.row_block;
  const int64_t strips = after == After::gate ? a.strips / 2 : a.strips;
  a.slice_strips = (strips + s.slices - 1) / s.slices;
  a.after = after;
  a.activation = s.rows % 2 == 0 ? Activation::silu : Activation::gelu_tanh;
  a.out_bf16 = half_out;
  const int64_t out_width = after == After::gate ? s.width / 2 : s.width;
  a.out_stride = out_width;
  Output out(s.rows * out_width, half_out);
  const Vector before = random.normals(s.rows * out_width);
  if (after == After::add) out.floats = before;
  a.out = out.data();
  Memory workspace(kernels.linear_workspace(a));
  kernels.enter();
  for (int64_t block = 0; block * s.row_block < s.rows; ++block) {
    for (int64_t slice = 0; slice * a.slice_strips < strips; ++slice) {
      kernels.linear(a, block, slice, workspace.get(), nullptr);
    }
  }
  kernels.leave();

  Vector inputs = input.values, weights = weight.values;
  for (size_t i = 0; i < inputs.size(); ++i) inputs[i] /= columns[i % s.size];
  for (size_t i = 0; i < weights.size(); ++i) weights[i] *= columns[i % s.size];
  const std::vector<double> left = operand(inputs, s.size, mode, false);
  const std::vector<double> right = operand(weights, s.size, mode, true);
  Check& check = report[std::string("linear ") + name_of(mode) + to_bf16(half_out)];
  const auto product = [&](int64_t r, int64_t f, double* bound) {
    double sum = 0, size = 0;
    for (int64_t k = 0; k < s.size; ++k) {
      const double term = left[r * s.size + k] * right[f * s.size + k];
      sum += term;
      size += std::fabs(term);
    }
    *bound = size * product_bound(mode, s.size);
    return sum + (s.bias ? static_cast<double>(bias[f]) : 0.0);
  };
  for (int64_t r = 0; r < s.rows; ++r) {
    for (int64_t f = 0; f < out_width; ++f) {
      double bound = 0, expected = product(r, f, &bound);
      if (after == After::add) expected += before[r * out_width + f];
      if (after == After::gate) {
        double up_bound = 0;
        const double up = product(r, out_width + f, &up_bound), gate = activated(a.activation, expected);
        bound = 1.2 * bound * std::fabs(up) + (std::fabs(gate) + bound) * up_bound;
        expected = gate * up;
        bound += 8 * kFloat * std::fabs(expected);
      }
      bound += kFloat * (2 + std::fabs(expected)) + (half_out ? kHalf * std::fabs(expected) : 0);
      check.add(out[r * out_width + f], expected, bound);
    }
  }
}

double half_value(const uint8_t* p) {
  const int bits = p[0] | p[1] << 8, exponent = bits >> 10 & 31;
  const double fraction = (bits & 1023) / 1024.0;
  const double magnitude = exponent == 0 ? std::ldexp(fraction, -14) : std::ldexp(1 + fraction, exponent - 15);
  return bits >> 15 != 0 ? -magnitude : magnitude;
}

// A value of a block: an integer times its scale, and what is added.
struct BlockValue {
  double scaled, offset;
};

constexpr int kCoded[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
constexpr double kTiny[8] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};

// Unpack a block of a file: the loops of ggml's dequantize_row_q4_0 and so on.
void unpack_file_block(BlockFormat format, const uint8_t* p, BlockValue* out) {
  const bool offset = format == BlockFormat::q4_1 || format == BlockFormat::q5_1;
  const bool fifth = format == BlockFormat::q5_0 || format == BlockFormat::q5_1 || format == BlockFormat::q5_k;
  switch (format) {
    case BlockFormat::q4_0:
    case BlockFormat::q4_1:
    case BlockFormat::q5_0:
    case BlockFormat::q5_1: {
      const double scale = half_value(p), least = offset ? half_value(p + 2) : 0;
      const uint8_t* const high = p + (offset ? 4 : 2);
      const uint8_t* const low = high + (fifth ? 4 : 0);
      for (int i = 0; i < 32; ++i) {
        int value = i < 16 ? low[i] % 16 : low[i - 16] / 16;
        if (fifth) value += (high[i / 8] >> i % 8) % 2 * 16;
        out[i] = {scale * (value - (offset ? 0 : fifth ? 16 : 8)), least};
      }
      return;
    }
    case BlockFormat::q8_0:
      for (int i = 0; i < 32; ++i) out[i] = {half_value(p) * static_cast<int8_t>(p[2 + i]), 0};
      return;
    case BlockFormat::q4_k:
    case BlockFormat::q5_k: {
      const uint8_t *const six = p + 4, *const high = p + 16, *const low = p + (fifth ? 48 : 16);
      for (int i = 0; i < 256; ++i) {
        const int j = i / 32;
        const int scale = j < 4 ? six[j] % 64 : six[j + 4] % 16 + six[j - 4] / 64 * 16;
        const int least = j < 4 ? six[j + 4] % 64 : six[j + 4] / 16 + six[j] / 64 * 16;
        const uint8_t both = low[i / 64 * 32 + i % 32];
        int value = j % 2 == 0 ? both % 16 : both / 16;
        if (fifth) value += (high[i % 32] >> j) % 2 * 16;
        out[i] = {half_value(p) * scale * value, -half_value(p + 2) * least};
      }
      return;
    }
    case BlockFormat::q6_k:
      for (int i = 0; i < 256; ++i) {
        const int half = i / 128, quarter = i % 128 / 32, l = i % 32;
        const uint8_t low = p[64 * half + quarter % 2 * 32 + l], high = p[128 + 32 * half + l];
        const int value = (quarter < 2 ? low % 16 : low / 16) + (high >> 2 * quarter) % 4 * 16 - 32;
        out[i] = {half_value(p + 208) * static_cast<int8_t>(p[192 + i / 16]) * value, 0};
      }
      return;
    case BlockFormat::q3_k:
      for (int i = 0; i < 256; ++i) {
        const int group = i / 16, quarter = i % 128 / 32, l = i % 32;
        const int low = group < 8 ? p[96 + group] % 16 : p[96 + group - 8] / 16;
        const int scale = low + (p[104 + group % 4] >> group / 4 * 2) % 4 * 16 - 32;
        const int value = (p[32 + i / 128 * 32 + l] >> 2 * quarter) % 4 - (p[l] >> i / 32 & 1 ? 0 : 4);
        out[i] = {half_value(p + 108) * scale * value, 0};
      }
      return;
    case BlockFormat::iq4_nl:
      for (int i = 0; i < 32; ++i) {
        out[i] = {half_value(p) * kCoded[i < 16 ? p[2 + i] % 16 : p[2 + i - 16] / 16], 0};
      }
      return;
    case BlockFormat::iq4_xs:
      for (int i = 0; i < 256; ++i) {
        const int j = i / 32, l = i % 32;
        const uint8_t both = p[8 + 16 * j + l % 16], lows = p[4 + j / 2];
        const int scale = (j % 2 == 0 ? lows % 16 : lows / 16) + (p[2 + j / 4] >> j % 4 * 2) % 4 * 16 - 32;
        out[i] = {half_value(p) * scale * kCoded[l < 16 ? both % 16 : both / 16], 0};
      }
      return;
    case BlockFormat::mxfp4:
      for (int i = 0; i < 32; ++i) {
        const int code = i < 16 ? p[1 + i] % 16 : p[1 + i - 16] / 16;
        out[i] = {std::ldexp(code < 8 ? kTiny[code] : -kTiny[code - 8], p[0] - 127), 0};
      }
      return;
  }
}

// Write random rows as a file holds them. Some scales are 0 or below the normal halves.
std::vector<uint8_t> file_rows(BlockFormat format, int64_t rows, int64_t size, Random& random) {
  std::vector<uint8_t> out(rows * size / block_size(format) * file_bytes(format));
  for (uint8_t& byte : out) byte = static_cast<uint8_t>(random.next() >> 8);
  for (size_t at = 0; at < out.size(); at += file_bytes(format)) {
    const bool two = format == BlockFormat::q4_1 || format == BlockFormat::q5_1 || format == BlockFormat::q4_k ||
                     format == BlockFormat::q5_k;
    if (format == BlockFormat::mxfp4) { // the exponent of a power of two
      out[at] = static_cast<uint8_t>(random.next() % 16 == 0 ? random.next() % 3 : 118 + random.next() % 4);
      continue;
    }
    const size_t first = format == BlockFormat::q6_k ? 208 : format == BlockFormat::q3_k ? 108 : 0;
    for (const size_t half : {first, first + 2}) {
      if (half > first && !two) continue;
      const uint32_t kind = random.next() % 16, exponent = kind == 0 ? 0 : 8 + random.next() % 3;
      const uint32_t bits = random.next() % 2 << 15 | exponent << 10 | (kind == 1 ? 0 : random.next() % 1024);
      uint8_t* const to = out.data() + at + half;
      to[0] = static_cast<uint8_t>(bits);
      to[1] = static_cast<uint8_t>(bits >> 8);
    }
  }
  return out;
}

// Multiply by a weight of two runs of strips: one of `format`, then others of `second`.
void check_blocks(Isa isa, const Kernels& kernels, Mode mode, const Shape& s, BlockFormat format, BlockFormat second,
                  After after, Report& report) {
  Random random(s.rows * 131 + s.width * 17 + s.size + static_cast<int>(format));
  Vector input_values = random.normals(s.rows * s.size);
  for (int64_t r = 1; r < s.rows; r += 3) {
    for (int64_t k = r % 32; k < s.size; k += 32) input_values[r * s.size + k] *= 1000; // integers need two terms
  }
  const Stored input(input_values, s.half_input);
  const Vector bias = random.normals(s.width);

  LinearArgs a{};
  a.input = {input.data(), s.half_input, s.size, 0};
  a.rows = s.rows;
  a.width = s.width;
  a.size = a.padded_size = s.size;
  a.strips = round_up(s.width, kStrip) / kStrip;
  a.bias = s.bias ? bias.data() : nullptr;
  a.row_block = s.row_block;
  const int64_t strips = after == After::gate ? a.strips / 2 : a.strips;
  a.slice_strips = (strips + s.slices - 1) / s.slices;
  a.after = after;
  a.activation = Activation::silu;
  const int64_t out_width = after == After::gate ? s.width / 2 : s.width;
  a.out_stride = out_width;

  std::vector<BlockValue> weight(s.width * s.size);
  const int64_t first_bytes = strip_bytes(kBlockShapes[static_cast<int>(format)], s.size);
  const int64_t other_bytes = strip_bytes(kBlockShapes[static_cast<int>(second)], s.size);
  Memory packed(first_bytes + (a.strips - 1) * other_bytes);
  char* const data = static_cast<char*>(packed.get());
  a.blocks.count = a.strips > 1 ? 2 : 1;
  a.blocks.runs[0] = {format, 1, first_bytes, data};
  a.blocks.runs[1] = {second, a.strips - 1, other_bytes, data + first_bytes};
  bool sound = true;
  for (int64_t strip = 0; strip < a.strips; ++strip) {
    const BlockFormat own = strip == 0 ? format : second;
    const int64_t first = strip * kStrip, count = std::min(kStrip, s.width - first), each = block_size(own);
    const int64_t row_bytes = s.size / each * file_bytes(own);
    const std::vector<uint8_t> rows = file_rows(own, count, s.size, random);
    char* const to = strip == 0 ? data : data + first_bytes + (strip - 1) * other_bytes;
    sound = pack_block_strip(own, rows.data(), row_bytes, count, s.size, reinterpret_cast<uint8_t*>(to)) && sound;
    for (int64_t i = 0; i < count * s.size; i += each) {
      unpack_file_block(own, rows.data() + i / each * file_bytes(own), weight.data() + first * s.size + i);
    }
  }
  const std::string name = std::string(" ") + name_of(mode) + " " + kFormatNames[static_cast<int>(format)];
  report["scales are finite"].add(sound, true, 0.5);

  // Only these products take the integers themselves; others of bf16 round the values.
  const bool rounds = mode == Mode::bf16 && isa != Isa::avx512_bf16;
  const auto value_of = [&](const BlockValue& w) {
    return rounds ? rounded(static_cast<float>(w.scaled + w.offset)) : w.scaled + w.offset;
  };
  const std::vector<double> left = operand(input.values, s.size, mode, false);
  const auto product = [&](int64_t r, int64_t f, double* bound) {
    double sum = 0, size = 0;
    for (int64_t k = 0; k < s.size; ++k) {
      const BlockValue& w = weight[f * s.size + k];
      sum += left[r * s.size + k] * value_of(w);
      size += std::fabs(left[r * s.size + k]) * (std::fabs(w.scaled) + std::fabs(w.offset));
    }
    *bound = size * product_bound(mode, s.size);
    return sum + (s.bias ? static_cast<double>(bias[f]) : 0.0);
  };
  const Vector before = random.normals(s.rows * out_width);
  for (const bool once : {false, true}) { // unpacked once for all rows
    if (once && kernels.unpack_strip == nullptr) continue;
    LinearArgs b = a;
    Memory whole(kernels.packed_bytes(a.strips, a.padded_size));
    if (once) {
      for (int64_t strip = 0; strip < a.strips; ++strip) kernels.unpack_strip(a, strip, whole.get());
      b.packed = whole.get();
      b.blocks = {};
    }
    Output out(s.rows * out_width, false);
    if (after == After::add) out.floats = before;
    b.out = out.data();
    Memory workspace(once ? kernels.linear_workspace(b) : kernels.linear_blocks_workspace(b));
    Held held{}; // as a thread that gets all tasks
    kernels.enter();
    for (int64_t block = 0; block * s.row_block < s.rows; ++block) {
      for (int64_t slice = 0; slice * a.slice_strips < strips; ++slice) {
        (once ? kernels.linear : kernels.linear_blocks)(b, block, slice, workspace.get(), &held);
      }
    }
    kernels.leave();
    Check& check = report[(once ? "unpacked" : "blocks") + name];
    for (int64_t r = 0; r < s.rows; ++r) {
      for (int64_t f = 0; f < out_width; ++f) {
        double bound = 0, expected = product(r, f, &bound);
        if (after == After::add) expected += before[r * out_width + f];
        if (after == After::gate) {
          double up_bound = 0;
          const double up = product(r, out_width + f, &up_bound), gate = activated(a.activation, expected);
          bound = 1.2 * bound * std::fabs(up) + (std::fabs(gate) + bound) * up_bound;
          expected = gate * up;
          bound += 8 * kFloat * std::fabs(expected);
        }
        bound += kFloat * (2 + std::fabs(expected));
        check.add(out[r * out_width + f], expected, bound);
      }
    }
  }
}

// A value that is not finite spoils its row and no other.
void check_poisoned(const Kernels& kernels, Mode mode, float poison, Report& report) {
  Random random(7);
  constexpr int64_t rows = 5, width = 32, size = 64;
  Vector input = random.normals(rows * size);
  const Stored weight(random.normals(width * size), mode == Mode::widened || mode == Mode::bf16x2);
  input[2 * size + 40] = poison;
  const Vector columns(size, 1.0f);
  PackArgs pack{{weight.data(), weight.half, size, 0}, width, size, size, 1, nullptr, columns.data()};
  Memory packed(kernels.packed_bytes(1, size)), packing(kernels.pack_weight_workspace(pack));
  pack.packed = packed.get();
  kernels.pack_weight(pack, 0, packing.get());
  Vector out(rows * width);
  LinearArgs a{};
  a.input = {input.data(), false, size, 0};
  a.rows = rows;
  a.width = width;
  a.size = a.padded_size = size;
  a.packed = pack.packed;
  a.strips = a.slice_strips = 1;
  a.row_block = 32;
  a.out = out.data();
  a.out_stride = width;
  Memory workspace(kernels.linear_workspace(a));
  kernels.enter();
  kernels.linear(a, 0, 0, workspace.get(), nullptr);
  kernels.leave();
  Check& check = report[std::string("not finite ") + name_of(mode)];
  for (int64_t i = 0; i < rows * width; ++i) check.add(std::isfinite(out[i]), i / width != 2, 0.5);
}

void check_norm(const Kernels& kernels, int64_t size, bool half, Report& report) {
  Random random(size);
  constexpr int64_t rows = 3;
  const int64_t stride = size + 5;
  const Vector input = random.normals(rows * stride), weight = random.normals(size);
  Output out(rows * size, half);
  kernels.rms_norm({input.data(), stride, size, weight.data(), 1e-5f, out.data(), size, half}, 0, rows);
  for (int64_t r = 0; r < rows; ++r) {
    double sum = 0;
    for (int64_t i = 0; i < size; ++i) sum += static_cast<double>(input[r * stride + i]) * input[r * stride + i];
    const double factor = 1 / std::sqrt(sum / static_cast<double>(size) + static_cast<double>(1e-5f));
    for (int64_t i = 0; i < size; ++i) {
      const double expected = input[r * stride + i] * factor * weight[i];
      report[std::string("rms_norm") + to_bf16(half)].add(out[r * size + i], expected, std::fabs(expected) * (half ? kHalf : 8 * kFloat) + 1e-30);
    }
  }
}

void check_rotary(const Kernels& kernels, int64_t size, int64_t rotated, bool hadamard, bool half, Report& report) {
  Random random(size + rotated);
  constexpr int64_t tokens = 3, heads = 2;
  const Vector input = random.normals(tokens * heads * size), cosine = random.normals(tokens * rotated);
  const Vector sine = random.normals(tokens * rotated);
  Output out(tokens * heads * size, half);
  const RotaryArgs a{input.data(), heads * size,  size,    heads,      size, rotated,
                     cosine.data(), sine.data(), rotated, out.data(), half, hadamard};
  kernels.rotary(a, 0, tokens);
  const int64_t block = hadamard ? hadamard_block(size) : 1;
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t h = 0; h < heads; ++h) {
      const float* x = input.data() + (t * heads + h) * size;
      std::vector<double> values(size), bounds(size);
      for (int64_t i = 0; i < size; ++i) {
        const int64_t half_size = rotated / 2, other = i < half_size ? i + half_size : i - half_size;
        double expected = x[i], bound = 0;
        if (i < rotated) {
          const double own = static_cast<double>(x[i]) * cosine[t * rotated + i];
          const double turned = static_cast<double>(x[other]) * sine[t * rotated + i];
          expected = i < half_size ? own - turned : own + turned;
          bound = 3 * kFloat * (std::fabs(own) + std::fabs(turned));
        }
        values[i] = expected;
        bounds[i] = bound;
      }
      for (int64_t i = 0; i < size; ++i) {
        const int64_t first = i / block * block;
        double expected = 0, bound = 0;
        for (int64_t j = first; j < first + block; ++j) {
          const double sign = __builtin_popcountll((i - first) & (j - first)) % 2 != 0 ? -1 : 1;
          const double share = 1 / std::sqrt(static_cast<double>(block));
          expected += share * sign * values[j];
          bound += share * (bounds[j] + (block > 1 ? 12 * kFloat * std::fabs(values[j]) : 0));
        }
        bound += half ? kHalf * std::fabs(expected) : 0;
        const std::string name = std::string("rotary") + (hadamard ? ", Hadamard" : "") + to_bf16(half);
        report[name].add(out[(t * heads + h) * size + i], expected, bound + 1e-30);
      }
    }
  }
}

void check_gate(const Kernels& kernels, int64_t size, Activation kind, bool half, Report& report) {
  Random random(size);
  Vector gate = random.normals(size);
  const Vector up = random.normals(size);
  for (int64_t i = 0; i < size; i += 3) gate[i] *= 40; // up to both ends of the exponential
  Output out(size, half);
  kernels.gate({gate.data(), size, up.data(), size, size, kind, out.data(), half}, 0, 1);
  for (int64_t i = 0; i < size; ++i) {
    const double expected = activated(kind, gate[i]) * up[i];
    // The exponential's argument has a rounding of its own.
    const double cubed = kind == Activation::silu ? 0 : std::fabs(gate[i]) * gate[i] * gate[i] / 10;
    const double bound = std::fabs(expected) * (kFloat * (16 + 2 * (std::fabs(gate[i]) + cubed)) + (half ? kHalf : 0));
    report[std::string("gate") + to_bf16(half)].add(out[i], expected, bound + 1e-30);
  }
}

// Attention of queries over a tree of a prefix and two branches after it, and the slots of its keys as tree_slots.cpp
// lays them out: a branch that leaves a chunk half full starts a new one with copies of the earlier keys.
struct Tree {
  int64_t prefix, first, second; // numbers of tokens
  int64_t tokens() const { return prefix + first + second; }
  int64_t depth(int64_t token) const { return token < prefix + first ? token : token - first; }
  bool sees(int64_t query, int64_t key) const {
    return key <= query && (query < prefix + first || key < prefix || key >= prefix + first);
  }
};

struct Slots {
  std::vector<int32_t> key, birth, end;
  std::vector<Chunk> chunks;

  void open(int64_t level) {
    key.resize(key.size() + kStrip, -1);
    birth.resize(birth.size() + kStrip, std::numeric_limits<int32_t>::max());
    end.resize(end.size() + kStrip, 0);
    chunks.push_back({static_cast<int32_t>(level), 0, 0, 0, 0});
  }
  void put(int64_t slot, int64_t token, int64_t from, int64_t to) {
    key[slot] = static_cast<int32_t>(token);
    birth[slot] = static_cast<int32_t>(from);
    end[slot] = static_cast<int32_t>(to);
  }
  explicit Slots(const Tree& tree) {
    const int64_t branch = tree.prefix + tree.first, last = tree.tokens(), level = tree.prefix / kStrip;
    for (int64_t token = 0; token < branch; ++token) {
      if (token % kStrip == 0) open(token / kStrip);
      const bool shared = token < tree.prefix && token / kStrip < level;
      put(token, token, token, shared ? last : branch);
    }
    int64_t slot = static_cast<int64_t>(key.size());
    for (int64_t depth = level * kStrip; tree.second > 0 && depth < tree.prefix + tree.second; ++depth, ++slot) {
      if (depth % kStrip == 0) open(depth / kStrip);
      const int64_t token = depth < tree.prefix ? depth : depth + tree.first;
      put(slot, token, std::max(token, branch), last);
    }
    for (size_t c = 0; c < chunks.size(); ++c) {
      const auto begin = static_cast<int64_t>(c) * kStrip, stop = begin + kStrip;
      const auto births = std::minmax_element(birth.begin() + begin, birth.begin() + stop);
      const auto ends = std::minmax_element(end.begin() + begin, end.begin() + stop);
      chunks[c].first_birth = *births.first;
      chunks[c].last_birth = 0; // as in tree_slots.cpp, where empty slots are never born
      for (int64_t i = begin; i < stop; ++i) chunks[c].last_birth = std::max(chunks[c].last_birth, birth[i]);
      chunks[c].first_end = *ends.first;
      chunks[c].last_end = *ends.second;
    }
  }
};

struct Heads {
  int64_t key_heads, groups, size, value_size;
};

// A sink and a slope of each query head.
struct Terms {
  Vector sinks, slopes;
  Terms(int64_t heads, Random& random) : sinks(random.normals(heads)), slopes(random.normals(heads)) {
    for (float& slope : slopes) slope /= 64;
    sinks[0] = -kInfinity; // none
  }
};

void check_attention(const Kernels& kernels, Mode mode, const Tree& tree, const Heads& h, int64_t window, float softcap,
                     bool parts, bool with_terms, Report& report) {
  Random random(tree.tokens() + h.size);
  const bool half = mode == Mode::bf16;
  const int64_t tokens = tree.tokens(), heads = h.key_heads * h.groups;
  const Stored query(random.normals(tokens * heads * h.size), half);
  const Stored key(random.normals(tokens * h.key_heads * h.size), half);
  const Stored value(random.normals(tokens * h.key_heads * h.value_size), half);
  const Slots slots(tree);
  std::vector<int32_t> node(tokens), position(tokens);
  for (int64_t i = 0; i < tokens; ++i) {
    node[i] = static_cast<int32_t>(i);
    position[i] = static_cast<int32_t>(tree.depth(i));
  }
  AttentionArgs a{};
  a.query = {query.data(), half, heads * h.size, h.size};
  a.key = {key.data(), half, h.key_heads * h.size, h.size};
  a.value = {value.data(), half, h.key_heads * h.value_size, h.value_size};
  a.queries = a.keys = tokens;
  a.heads = heads;
  a.key_heads = h.key_heads;
  a.groups = h.groups;
  a.size = h.size;
  a.value_size = h.value_size;
  a.slots = static_cast<int64_t>(slots.key.size());
  a.padded_size = round_up(h.size, kStrip);
  a.padded_value_size = round_up(h.value_size, kStrip);
  a.query_node = node.data();
  a.slot_key = slots.key.data();
  a.slot_birth = slots.birth.data();
  a.slot_end = slots.end.data();
  a.chunks = slots.chunks.data();
  a.query_positions = a.key_positions = position.data();
  a.scale = 1 / std::sqrt(static_cast<float>(h.size));
  a.window = window;
  a.softcap = softcap;
  const Terms terms(heads, random);
  if (with_terms) {
    a.sinks = terms.sinks.data();
    a.slopes = terms.slopes.data();
  }

  constexpr int64_t tile = 40, block = 2 * kStrip;
  std::vector<int32_t> tile_start, tile_stop, block_ptr{0}, block_start, block_stop;
  std::vector<char> block_full;
  const int64_t chunk_count = a.slots / kStrip;
  for (int64_t start = 0; start < tokens; start += tile) {
    const int64_t stop = std::min(start + tile, tokens);
    tile_start.push_back(static_cast<int32_t>(start));
    tile_stop.push_back(static_cast<int32_t>(stop));
    for (int64_t chunk = 0; chunk < chunk_count;) {
      const int64_t from = chunk++;
      const auto segment = [&](int64_t c) { return slots.chunks[c].level / kSegment; };
      while (chunk < chunk_count && (chunk - from) * kStrip < block && segment(chunk) == segment(from)) ++chunk;
      bool full = window == 0;
      for (int64_t c = from; c < chunk; ++c) {
        full = full && slots.chunks[c].last_birth <= start && stop <= slots.chunks[c].first_end;
      }
      block_start.push_back(static_cast<int32_t>(from * kStrip));
      block_stop.push_back(static_cast<int32_t>(chunk * kStrip));
      block_full.push_back(full);
    }
    block_ptr.push_back(static_cast<int32_t>(block_start.size()));
  }
  a.tiles = static_cast<int64_t>(tile_start.size());
  a.tile_rows = round_up(tile * h.groups, kStrip);
  a.key_block = block;
  a.threads = 1;
  a.tile_start = tile_start.data();
  a.tile_stop = tile_stop.data();
  a.block_ptr = block_ptr.data();
  a.block_start = block_start.data();
  a.block_stop = block_stop.data();
  a.block_full = reinterpret_cast<const bool*>(block_full.data());
  Memory keys(kernels.operand_bytes * a.key_heads * a.slots * a.padded_size);
  Memory values(kernels.operand_bytes * a.key_heads * a.slots * a.padded_value_size);
  a.packed_keys = keys.get();
  a.packed_values = values.get();
  if (parts) a.parts = slots.chunks.back().level / kSegment + 1;
  const int64_t part_rows = a.tiles * a.key_heads * a.parts * a.tile_rows;
  Memory sums(part_rows * a.padded_value_size * 4), maximum(part_rows * 4), total(part_rows * 8);
  a.part_sums = static_cast<float*>(sums.get());
  a.part_maximum = static_cast<float*>(maximum.get());
  a.part_total = static_cast<float*>(total.get());
  Output out(tokens * heads * h.value_size, half);
  Vector lse(tokens * heads, std::nanf(""));
  a.out = out.data();
  a.out_bf16 = half;
  a.lse = lse.data();
  Memory workspace(kernels.attend_workspace(a));
  for (int64_t head = 0; head < a.key_heads; ++head) {
    for (int64_t chunk = 0; chunk < chunk_count; ++chunk) kernels.pack_keys(a, head, chunk);
  }
  kernels.enter();
  for (int64_t t = 0; t < a.tiles; ++t) {
    for (int64_t head = 0; head < a.key_heads; ++head) {
      if (!parts) kernels.attend(a, t, head, -1, workspace.get());
      for (int64_t part = 0; part < a.parts; ++part) kernels.attend(a, t, head, part, workspace.get());
      if (parts) kernels.join(a, t, head, workspace.get());
    }
  }
  kernels.leave();

  const double bound = half ? 2e-2 : mode == Mode::bf16x3 ? 2e-4 : 1e-5;
  const std::string suffix = std::string(name_of(mode)) + (with_terms ? " terms" : "");
  std::vector<double> weights(tokens);
  for (int64_t q = 0; q < tokens; ++q) {
    for (int64_t head = 0; head < heads; ++head) {
      const int64_t key_head = head / h.groups;
      double most = -kInfinity, mass = 0;
      for (int64_t k = 0; k < tokens; ++k) {
        weights[k] = -kInfinity;
        if (!tree.sees(q, k) || (window > 0 && position[k] <= position[q] - window)) continue;
        double score = 0;
        for (int64_t i = 0; i < h.size; ++i) {
          score += static_cast<double>(query.values[(q * heads + head) * h.size + i]) *
                   key.values[(k * h.key_heads + key_head) * h.size + i];
        }
        score *= a.scale;
        weights[k] = softcap > 0 ? softcap * std::tanh(score / softcap) : score;
        if (with_terms) weights[k] += static_cast<double>(terms.slopes[head]) * (position[k] - position[q]);
        most = std::max(most, weights[k]);
      }
      for (double& w : weights) mass += w = std::exp(w - most);
      if (with_terms) mass += std::exp(terms.sinks[head] - most);
      for (int64_t i = 0; i < h.value_size; ++i) {
        double expected = 0;
        for (int64_t k = 0; k < tokens; ++k) {
          if (weights[k] > 0) expected += weights[k] * value.values[(k * h.key_heads + key_head) * h.value_size + i];
        }
        expected /= mass;
        report["attention " + suffix].add(out[(q * heads + head) * h.value_size + i], expected, bound * 2);
      }
      report["attention lse " + suffix].add(lse[q * heads + head], most + std::log(mass), bound);
    }
  }
}

void check_decoding(const Kernels& kernels, bool half, const Heads& h, float softcap, bool with_terms, Report& report) {
  Random random(h.groups * 10 + h.size);
  const int64_t heads = h.key_heads * h.groups;
  const int64_t lengths[2] = {150, 40};
  const Stored keys[2] = {{random.normals(lengths[0] * h.key_heads * h.size), half},
                          {random.normals(lengths[1] * h.key_heads * h.size), half}};
  const Stored values[2] = {{random.normals(lengths[0] * h.key_heads * h.value_size), half},
                            {random.normals(lengths[1] * h.key_heads * h.value_size), half}};
  Source key_sources[2], value_sources[2];
  for (int i = 0; i < 2; ++i) {
    key_sources[i] = {keys[i].data(), half, h.key_heads * h.size, h.size};
    value_sources[i] = {values[i].data(), half, h.key_heads * h.value_size, h.value_size};
  }
  // Row 0 sees two ranges and a longer one, row 1 one key, row 2 nothing.
  const int32_t row_ptr[] = {0, 3, 4, 4}, part[] = {0, 1, 0, 1}, start[] = {3, 0, 70, 5}, stop[] = {60, 33, 150, 6};
  const int32_t offset[] = {-170, -113, -80, 0};
  constexpr int64_t rows = 3;
  const Vector query = random.normals(rows * heads * h.size);
  const Terms terms(heads, random);
  Vector out(rows * heads * h.value_size, std::nanf("")), lse(rows * heads, std::nanf(""));
  const DecodeAttentionArgs a{{query.data(), false, heads * h.size, h.size},
                              key_sources,
                              value_sources,
                              heads,
                              h.groups,
                              h.size,
                              h.value_size,
                              round_up(h.size, kStrip),
                              round_up(h.value_size, kStrip),
                              row_ptr,
                              part,
                              start,
                              stop,
                              1 / std::sqrt(static_cast<float>(h.size)),
                              softcap,
                              with_terms ? terms.sinks.data() : nullptr,
                              with_terms ? terms.slopes.data() : nullptr,
                              with_terms ? offset : nullptr,
                              out.data(),
                              lse.data()};
  Memory workspace(kernels.attend_row_workspace(a));
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t head = 0; head < h.key_heads; ++head) kernels.attend_row(a, row, head, workspace.get());
  }
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t head = 0; head < heads; ++head) {
      const int64_t key_head = head / h.groups;
      std::vector<double> sums(h.value_size);
      double mass = 0;
      for (int32_t r = row_ptr[row]; r < row_ptr[row + 1]; ++r) {
        for (int64_t k = start[r]; k < stop[r]; ++k) {
          double score = 0;
          for (int64_t i = 0; i < h.size; ++i) {
            score += static_cast<double>(query[(row * heads + head) * h.size + i]) *
                     keys[part[r]].values[(k * h.key_heads + key_head) * h.size + i];
          }
          score *= a.scale;
          if (softcap > 0) score = softcap * std::tanh(score / softcap);
          if (with_terms) score += static_cast<double>(terms.slopes[head]) * static_cast<double>(offset[r] + k - start[r]);
          const double weight = std::exp(score);
          mass += weight;
          for (int64_t i = 0; i < h.value_size; ++i) {
            sums[i] += weight * values[part[r]].values[(k * h.key_heads + key_head) * h.value_size + i];
          }
        }
      }
      if (with_terms) mass += std::exp(static_cast<double>(terms.sinks[head]));
      for (int64_t i = 0; i < h.value_size; ++i) {
        report["decode_attention"].add(out[(row * heads + head) * h.value_size + i], mass > 0 ? sums[i] / mass : 0, 1e-5);
      }
      report["decode_attention lse"].add(lse[row * heads + head], mass > 0 ? std::log(mass) : -kInfinity, 1e-5);
    }
  }
}

void check_logprob(const Kernels& kernels, Mode mode, int64_t rows, int64_t vocabulary, int64_t size, bool biased,
                   float softcap, Report& report) {
  Random random(rows + vocabulary);
  const bool half = mode == Mode::bf16;
  const Stored hidden(random.normals(rows * size), half);
  Vector raw = random.normals(vocabulary * size);
  for (float& x : raw) x *= 2 / std::sqrt(static_cast<float>(size));
  const Stored weight(raw, half || mode == Mode::bf16x2);
  const Vector bias = random.normals(vocabulary);
  std::vector<int64_t> target(rows), labels;
  for (int64_t& t : target) t = random.next() % vocabulary;
  for (int64_t i = 0; i < 35; ++i) labels.push_back(random.next() % vocabulary);
  LogprobArgs a{};
  a.hidden = {hidden.data(), half, size, 0};
  a.weight = {weight.data(), weight.half, size, 0};
  a.rows = rows;
  a.vocabulary = vocabulary;
  a.size = size;
  a.padded_size = round_up(size, kStrip);
  a.target = target.data();
  a.labels = labels.data();
  a.label_count = static_cast<int64_t>(labels.size());
  a.bias = biased ? bias.data() : nullptr;
  a.scale = softcap > 0 ? 0.7f : 1;
  a.softcap = softcap;
  a.row_block = 64;
  a.blocks = (rows + a.row_block - 1) / a.row_block;
  a.slice_size = 64;
  const int64_t slices = (vocabulary + a.slice_size - 1) / a.slice_size, strips = a.row_block / kStrip;
  Memory states(static_cast<int64_t>(sizeof(LogprobState)) * slices * a.blocks * strips);
  a.states = static_cast<LogprobState*>(states.get());
  Vector label_logits(rows * a.label_count, std::nanf(""));
  a.label_logits = label_logits.data();
  Memory workspace(kernels.logprob_workspace(a));
  kernels.enter();
  for (int64_t block = 0; block < a.blocks; ++block) {
    for (int64_t slice = 0; slice < slices; ++slice) kernels.logprob(a, block, slice, workspace.get());
  }
  kernels.leave();

  const double bound = half || mode == Mode::f32 ? 2e-5 : 3e-4;
  Check& check = report[std::string("linear_logprob ") + name_of(mode)];
  for (int64_t row = 0; row < rows; ++row) {
    std::vector<double> logits(vocabulary);
    for (int64_t v = 0; v < vocabulary; ++v) {
      for (int64_t k = 0; k < size; ++k) {
        logits[v] += static_cast<double>(hidden.values[row * size + k]) * weight.values[v * size + k];
      }
      logits[v] = (logits[v] + (biased ? bias[v] : 0.0f)) * a.scale;
      if (softcap > 0) logits[v] = softcap * std::tanh(logits[v] / softcap);
    }
    double mass = 0, weighted = 0, got_mass = 0, got_weighted = 0;
    for (const double x : logits) {
      mass += std::exp(x);
      weighted += std::exp(x) * x;
    }
    float best = -kInfinity;
    int64_t winner = -1;
    const int64_t lane = row % kStrip, strip = row / a.row_block * strips + row % a.row_block / kStrip;
    for (int64_t slice = 0; slice < slices; ++slice) {
      const LogprobState& s = a.states[slice * a.blocks * strips + strip];
      const double factor = std::exp2(static_cast<double>(s.maximum[lane]));
      got_mass += (static_cast<double>(s.total[lane]) - s.total_lost[lane]) * factor;
      got_weighted += (static_cast<double>(s.weighted[lane]) - s.weighted_lost[lane]) * factor;
      if (s.best[lane] > best) {
        best = s.best[lane];
        winner = s.argmax[lane];
      }
      if (target[row] / a.slice_size == slice) check.add(s.picked[lane], logits[target[row]], bound);
    }
    check.add(std::log(got_mass), std::log(mass), bound);
    check.add(got_weighted / got_mass, weighted / mass, 4 * bound);
    check.add(best, *std::max_element(logits.begin(), logits.end()), bound);
    check.add(logits[winner], best, bound);
    for (int64_t i = 0; i < a.label_count; ++i) {
      check.add(label_logits[row * a.label_count + i], logits[labels[i]], bound);
    }
  }
}

// Two tokens after a state, then the rest, so that chunks of tokens and a chain's end are compared.
void check_scan(const Kernels& kernels, int64_t size, int64_t value_size, int64_t groups, bool delta, bool channels,
                Report& report) {
  constexpr int64_t tokens = 70, key_heads = 2;
  const int64_t heads = key_heads * groups, state = size * value_size;
  Random random(size * 100 + value_size);
  const Vector query = random.normals(tokens * key_heads * size), key = random.normals(tokens * key_heads * size);
  const Vector value = random.normals(tokens * heads * value_size), before = random.normals(heads * state);
  const int64_t gates = channels ? size : 1;
  Vector gate = random.normals(tokens * heads * gates), beta = random.normals(tokens * heads);
  for (float& g : gate) g = -std::fabs(g) / 4;
  for (float& b : beta) b = 1 / (1 + std::exp(-b));
  ScanArgs a{};
  a.query = {query.data(), false, key_heads * size, size};
  a.key = {key.data(), false, key_heads * size, size};
  a.value = {value.data(), false, heads * value_size, value_size};
  a.gate = {gate.data(), false, heads * gates, gates};
  a.beta = {delta ? beta.data() : nullptr, false, heads, 1};
  a.groups = groups;
  a.size = size;
  a.value_size = value_size;
  a.heads = heads;
  a.channels = channels;
  a.scale = 0.5f;
  a.unit = true;
  a.epsilon = 1e-6f;
  Vector out(tokens * heads * value_size, std::nanf("")), after(heads * state, std::nanf(""));
  Vector kept(heads * state, std::nanf(""));
  a.out = out.data();
  for (int64_t head = 0; head < heads; ++head) {
    for (int64_t column = 0; column < value_size; column += kStrip) { // as threads would divide them
      const int64_t columns = std::min(kStrip, value_size - column);
      Memory memory(kernels.scan_workspace(a, columns));
      kernels.scan(a, {0, 2, head, column, columns, before.data() + head * state, after.data() + head * state, nullptr},
                   memory.get());
      kernels.scan(a, {2, tokens - 2, head, column, columns, after.data() + head * state, nullptr,
                       kept.data() + head * state}, memory.get());
    }
  }
  const std::string name = std::string(delta ? "delta rule" : "linear attention") + (channels ? ", channels" : "");
  for (int64_t head = 0; head < heads; ++head) {
    std::vector<double> s(before.begin() + head * state, before.begin() + (head + 1) * state);
    for (int64_t token = 0; token < tokens; ++token) {
      const float* q = query.data() + (token * key_heads + head / groups) * size;
      const float* k = key.data() + (token * key_heads + head / groups) * size;
      double q_squares = 1e-6, k_squares = 1e-6;
      for (int64_t i = 0; i < size; ++i) {
        q_squares += static_cast<double>(q[i]) * q[i];
        k_squares += static_cast<double>(k[i]) * k[i];
      }
      for (int64_t c = 0; c < value_size; ++c) {
        double found = 0, made = 0;
        for (int64_t i = 0; i < size; ++i) {
          double& x = s[i * value_size + c];
          x *= std::exp(static_cast<double>(gate[(token * heads + head) * gates + (channels ? i : 0)]));
          found += x * k[i] / std::sqrt(k_squares);
        }
        double written = value[(token * heads + head) * value_size + c];
        if (delta) written = beta[token * heads + head] * (written - found);
        for (int64_t i = 0; i < size; ++i) {
          double& x = s[i * value_size + c];
          x += k[i] / std::sqrt(k_squares) * written;
          made += x * q[i] / std::sqrt(q_squares) * 0.5;
        }
        report[name].add(out[(token * heads + head) * value_size + c], made, 4e-6);
      }
    }
    for (int64_t i = 0; i < state; ++i) report[name + ", state"].add(kept[head * state + i], s[i], 4e-6);
  }
}

void check_convolution(const Kernels& kernels, int64_t size, int64_t taps, bool biased, bool silu, Report& report) {
  constexpr int64_t tokens = 9;
  Random random(size + taps);
  const Vector input = random.normals(tokens * size), weight = random.normals(taps * size), bias = random.normals(size);
  const Vector initial = random.normals(2 * size);
  std::vector<int64_t> ancestors(tokens * (taps - 1));
  for (int64_t i = 0; i < tokens * (taps - 1); ++i) ancestors[i] = static_cast<int64_t>(random.next() % 12) - 3;
  Vector out(tokens * size, std::nanf(""));
  const ConvArgs a{input.data(), size, size, taps, initial.data(), ancestors.data(), weight.data(),
                   biased ? bias.data() : nullptr, silu, out.data()};
  kernels.convolve(a, 0, 4);
  kernels.convolve(a, 4, tokens);
  for (int64_t token = 0; token < tokens; ++token) {
    for (int64_t c = 0; c < size; ++c) {
      double sum = biased ? bias[c] : 0;
      for (int64_t d = 0; d < taps; ++d) {
        const int64_t at = d == 0 ? token : ancestors[token * (taps - 1) + d - 1];
        if (at == -1) continue;
        sum += static_cast<double>(at >= 0 ? input[at * size + c] : initial[(-2 - at) * size + c]) * weight[d * size + c];
      }
      report["causal_conv"].add(out[token * size + c], silu ? sum / (1 + std::exp(-sum)) : sum, 4e-6);
    }
  }
}

void check_isa(Isa isa, Report& report) {
  for (const Mode mode : kModes) {
    const Kernels* kernels = kernels_of(isa, mode);
    if (kernels == nullptr) continue;
    if (kernels->linear != nullptr) {
      for (const int64_t rows : {1, 2, 3, 4, 5, 8, 9, 31, 32, 33, 100}) {
        check_linear(*kernels, mode, {rows, 40, 70, 32, 1, true, false}, After::store, false, false, report);
      }
      check_linear(*kernels, mode, {100, 96, 640, 64, 2, false, false}, After::store, false, false, report);
      check_linear(*kernels, mode, {70, 64, 608, 128, 2, false, true}, After::add, false, false, report);
      check_linear(*kernels, mode, {37, 45, 33, 32, 1, true, true}, After::add, false, false, report);
      check_linear(*kernels, mode, {66, 128, 96, 96, 2, true, false}, After::gate, false, false, report);
      check_linear(*kernels, mode, {5, 64, 96, 32, 1, false, false}, After::gate, true, false, report);
      check_linear(*kernels, mode, {9, 32, 96, 32, 1, false, false}, After::store, false, true, report);
      for (const float poison : {std::nanf(""), kInfinity}) check_poisoned(*kernels, mode, poison, report);
    }
    if (kernels->linear_blocks != nullptr && mode != Mode::bf16x2 && mode != Mode::widened) { // of weights in bf16
      for (int i = 0; i < kBlockFormats; ++i) {
        const BlockFormat format = static_cast<BlockFormat>(i);
        const BlockFormat second = static_cast<BlockFormat>((i + 1) % kBlockFormats);
        const int64_t size = block_size(format) == kRecord && block_size(second) == kRecord ? 608 : 768;
        const auto check = [&](const Shape& shape, After after) {
          check_blocks(isa, *kernels, mode, shape, format, second, after, report);
        };
        for (const int64_t rows : {1, 3, 16, 40}) {
          check({rows, 70, 512, 64, 2, true, false}, After::store);
          check({rows, 45, size, 64, 1, false, true}, After::add);
        }
        check({40, 128, 256, 64, 1, true, true}, After::gate);
      }
    }
    for (const int64_t size : {1, 16, 70, 576}) {
      for (const bool half : {false, true}) {
        check_norm(*kernels, size, half, report);
        check_gate(*kernels, size, Activation::silu, half, report);
        check_gate(*kernels, size, Activation::gelu_tanh, half, report);
      }
    }
    for (const bool half : {false, true}) {
      for (const bool hadamard : {false, true}) {
        check_rotary(*kernels, 64, 64, hadamard, half, report);
        check_rotary(*kernels, 20, 6, hadamard, half, report);
        check_rotary(*kernels, 96, 32, hadamard, half, report);
      }
    }
    if (kernels->attend_row != nullptr) {
      for (const int64_t groups : {1, 2, 3, 7}) {
        check_decoding(*kernels, false, {2, groups, 64, 64}, 0, false, report);
        check_decoding(*kernels, true, {1, groups, 20, 33}, 5, false, report);
        check_decoding(*kernels, false, {2, groups, 32, 64}, 0, true, report);
      }
      check_decoding(*kernels, true, {1, 2, 576, 512}, 5, true, report);
    }
    if (kernels->attend != nullptr && mode != Mode::bf16x2) { // no op has attention with such operands
      check_attention(*kernels, mode, {50, 40, 37}, {2, 3, 40, 24}, 0, 0, false, false, report);
      check_attention(*kernels, mode, {50, 40, 37}, {1, 2, 64, 64}, 20, 4, false, false, report);
      check_attention(*kernels, mode, {500, 60, 70}, {1, 1, 32, 32}, 0, 0, false, false, report);
      check_attention(*kernels, mode, {500, 60, 70}, {1, 1, 32, 32}, 0, 0, true, false, report);
      check_attention(*kernels, mode, {50, 40, 37}, {2, 3, 40, 24}, 20, 0, false, true, report);
      check_attention(*kernels, mode, {500, 60, 70}, {1, 2, 32, 32}, 0, 4, true, true, report);
      check_attention(*kernels, mode, {50, 40, 37}, {1, 1, 576, 512}, 0, 0, false, true, report);
    }
    if (kernels->scan != nullptr) {
      for (const bool channels : {false, true}) {
        for (const bool delta : {false, true}) {
          check_scan(*kernels, 64, 64, 2, delta, channels, report);
          check_scan(*kernels, 20, 33, 1, delta, channels, report);
          check_scan(*kernels, 1, 1, 3, delta, channels, report);
        }
      }
      for (const int64_t taps : {1, 2, 4}) {
        check_convolution(*kernels, 70, taps, true, false, report);
        check_convolution(*kernels, 16, taps, false, true, report);
      }
    }
    if (kernels->logprob != nullptr) {
      check_logprob(*kernels, mode, 70, 170, 64, false, 0, report);
      check_logprob(*kernels, mode, 5, 100, 40, true, 3, report);
    }
  }
}

} // namespace

int main(int count, char** names) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  for (int i = 1; i < count; ++i) {
    bool known = false;
    for (int isa = 0; isa < kIsaCount; ++isa) known = known || std::strcmp(names[i], isa_name(static_cast<Isa>(isa))) == 0;
    if (known) continue;
    std::printf("unknown instruction set %s\n", names[i]);
    return 2;
  }
  int64_t misses = 0;
  std::string run;
  for (int i = 0; i < kIsaCount; ++i) {
    const Isa isa = static_cast<Isa>(i);
    const auto named = [&](const char* name) { return std::strcmp(name, isa_name(isa)) == 0; };
    if (count > 1 && std::none_of(names + 1, names + count, named)) continue;
    if (!has_isa(isa)) {
      if (count == 1) continue;
      std::printf("this machine has no %s\n", isa_name(isa));
      return 2;
    }
    Report report;
    check_isa(isa, report);
    misses += report.print(isa_name(isa));
    run += std::string(run.empty() ? "" : ", ") + isa_name(isa);
  }
  std::printf("%s: %lld values outside their bounds\n", run.c_str(), static_cast<long long>(misses));
  return misses == 0 ? 0 : 1;
}
