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

#if !FR_PRODUCTS_ONLY
template <typename T, int TERMS>
constexpr auto unpack_strip_of() {
  return std::is_same_v<T, bf16> && !kExact<Unpacked<T, TERMS, TERMS>> ? unpack_strip<T, TERMS> : nullptr;
}

template <typename T, int TA, int TB, typename F = Plain<T, TA, TB>>
constexpr Kernels kTable = {
    .operand_bytes = TB * static_cast<int64_t>(sizeof(T)),
    .packed_bytes = packed_bytes<F>,
    .pack_keys = pack_keys<T, TA>,
    .attend = attend<T, TA>,
    .join = join<T, TA>,
    .attend_row = attend_row,
    .logprob = logprob<T, TA, TB>,
    .pack_weight = pack_weight<F>,
    .linear = linear<F>,
    .linear_blocks = linear<Unpacked<T, TA, TB>>,
    .unpack_strip = unpack_strip_of<T, TB>(),
    .unpack_block = unpack_block,
    .rms_norm = rms_norm,
    .rotary = rotary,
    .gate = gate,
#if !FR_BF16
    .scan = scan,
    .convolve = convolve,
#endif
    .attend_workspace = attend_workspace<T, TA>,
    .attend_row_workspace = attend_row_workspace,
    .logprob_workspace = logprob_workspace<T, TA, TB>,
    .linear_workspace = linear_workspace<F>,
    .linear_blocks_workspace = linear_workspace<Unpacked<T, TA, TB>>,
    .pack_weight_workspace = pack_weight_workspace<F>,
#if !FR_BF16
    .scan_workspace = scan_workspace,
#endif
    .enter = enter,
    .leave = leave,
};
#endif

// Products alone, for operands that no attention takes.
template <typename F>
constexpr Kernels kLinearTable = {
    .operand_bytes = static_cast<int64_t>(sizeof(typename F::Input)),
    .packed_bytes = packed_bytes<F>,
    .pack_weight = pack_weight<F>,
    .linear = linear<F>,
    .linear_blocks = linear<Unpacked<typename F::Input, 1, 1>>,
    .unpack_block = unpack_block,
    .rms_norm = rms_norm,
    .rotary = rotary,
    .gate = gate,
    .linear_workspace = linear_workspace<F>,
    .linear_blocks_workspace = linear_workspace<Unpacked<typename F::Input, 1, 1>>,
    .pack_weight_workspace = pack_weight_workspace<F>,
    .enter = enter,
    .leave = leave,
};

const Kernels* table(Mode mode) {
#if FR_PRODUCTS_ONLY
  return mode == Mode::scaled ? &kLinearTable<Scaled> : nullptr;
#elif FR_BF16
  if (mode == Mode::bf16) return &kTable<bf16, 1, 1>;
  if (mode == Mode::bf16x3) return &kTable<bf16, 2, 2>;
  if (mode == Mode::bf16x2) return &kTable<bf16, 1, 2>;
  return nullptr;
#else
  if (mode == Mode::f32) return &kTable<float, 1, 1>;
  if (mode == Mode::widened) return &kLinearTable<Widened>;
  if (mode == Mode::scaled) return &kLinearTable<Scaled>;
  return nullptr;
#endif
}
