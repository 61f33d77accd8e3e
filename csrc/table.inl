// The table of kernels, from the templates included before.

void enter() {
#if FR_AMX
  struct alignas(64) {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t bytes[16] = {};
    uint8_t rows[16] = {};
  } config;
  for (int i = 0; i < 8; ++i) {
    config.bytes[i] = 64;
    config.rows[i] = 16;
  }
  asm volatile("" ::: "memory"); // the intrinsic does not say that it reads all of config
  _tile_loadconfig(&config);
#endif
}

void leave() {
#if FR_AMX
  _tile_release();
#endif
}

template <typename T, int TA, int TB>
constexpr Kernels kTable = {
    TB * static_cast<int64_t>(sizeof(T)),
    TA * static_cast<int64_t>(sizeof(T)),
    pack_keys<T, TA>,
    attend<T, TA>,
    join<T, TA>,
    attend_row,
    logprob<T, TA, TB>,
    pack_weight<T, TA>,
    linear<T, TA, TB>,
    rms_norm,
    rotary,
    gate,
    attend_workspace<T, TA>,
    attend_row_workspace,
    logprob_workspace<T, TA, TB>,
    linear_workspace<T, TA, TB>,
    pack_weight_workspace<T, TA>,
    enter,
    leave,
};

const Kernels* table(Mode mode) {
#if FR_BF16
  if (mode == Mode::bf16) return &kTable<bf16, 1, 1>;
  if (mode == Mode::bf16x3) return &kTable<bf16, 2, 2>;
  if (mode == Mode::bf16x2) return &kTable<bf16, 1, 2>;
  return nullptr;
#else
  return mode == Mode::f32 ? &kTable<float, 1, 1> : nullptr;
#endif
}
