// A short depthwise convolution over the path of each token. Sums start with the token itself and go back along its path,
// so they depend on nothing else.

FR_INLINE void convolve_token(const ConvArgs& a, int64_t token) {
  const float *rows[ConvArgs::kMostTaps], *weights[ConvArgs::kMostTaps];
  const int64_t* nearest = a.ancestors + token * (a.taps - 1);
  rows[0] = a.input + token * a.input_stride;
  weights[0] = a.weight;
  int64_t count = 1;
  for (int64_t d = 1; d < a.taps; ++d) {
    const int64_t at = nearest[d - 1];
    if (at == -1) continue; // before the beginning of a text
    rows[count] = at >= 0 ? a.input + at * a.input_stride : a.initial + (-2 - at) * a.size;
    weights[count++] = a.weight + d * a.size;
  }
  float* out = a.out + token * a.size;
  for (int64_t i = 0; i < a.size; i += kWidth) {
    const int64_t n = a.size - i;
    vf sum = load_some(rows[0] + i, n) * load_some(weights[0] + i, n);
    for (int64_t d = 1; d < count; ++d) sum += load_some(rows[d] + i, n) * load_some(weights[d] + i, n);
    if (a.bias != nullptr) sum += load_some(a.bias + i, n);
    store_some(out + i, a.silu ? activate(Activation::silu, sum) : sum, n);
  }
}

void convolve(const ConvArgs& a, int64_t begin, int64_t end) {
  for (int64_t token = begin; token < end; ++token) convolve_token(a, token);
}
