// The kernels that every instruction set provides. They take plain structs of pointers, so that files compiled with
// other instruction sets share no templates with the rest (an AVX-512 copy of one would crash older machines).
//
// Strips: all matrix products are transposed. 32 rows of queries (or of hidden states) form a strip, one vector lane
// each, and the kernel walks the other operand (keys, values, vocabulary) row by row. Softmax statistics are then plain
// lane-wise vector operations, and the walked operand needs no packing beyond padding.
#pragma once

#include <cstdint>

#include "isa.h"

namespace fastreader {

constexpr int64_t kStrip = 32; // rows of a strip; values are packed in groups of as many keys

constexpr int64_t kMaxStrips = 64; // in a tile of queries
constexpr int64_t kMaxHeadSize = 576; // of queries, keys and values

// Operands of the products. "bf16x3" writes each value as the sum of two bf16 and takes three products; "bf16x2" takes
// two, since the weight is bf16 already. "widened" multiplies a bf16 weight in float32. "scaled" writes 32 values as
// integers of 14 bits and a scale. Only linear layers have the last two.
enum class Mode { f32, bf16, bf16x3, bf16x2, widened, scaled };

// How the rows of a GGUF file write their values: integers of 3 to 8 bits, with scales for 16 or 32 of them.
enum class BlockFormat : int32_t { q4_0, q4_1, q5_0, q5_1, q8_0, q4_k, q5_k, q6_k, q3_k, iq4_nl, iq4_xs, mxfp4 };
constexpr int kBlockFormats = 12;

// A weight that keeps the integers of its file, in strips of 32 rows; see blocks.inl. Joined weights (queries, keys and
// values) may differ in format.
struct BlockRun {
  BlockFormat format;
  int64_t strips, strip_bytes;
  const char* data;
};
struct Blocks {
  static constexpr int64_t kMostRuns = 7;
  int64_t count; // 0: no such weight
  BlockRun runs[kMostRuns];
};

// Rows of a strided matrix of float or bf16.
struct Source {
  const void* data;
  bool bf16;
  int64_t token_stride; // elements
  int64_t head_stride;
};

// Keys of one path are summed in chunks of 32 by depth, and the chunks in segments of 16, each segment separately. So
// the order of every sum depends only on the path, and results do not depend on the rest of the tree.
constexpr int64_t kSegment = 16; // chunks

// 32 slots of keys; see tree_slots.cpp. Births and ends are query nodes: a slot is visible from its birth to its end.
struct Chunk {
  int32_t level; // depth / 32 of its keys
  int32_t first_birth, last_birth; // an empty slot has no birth
  int32_t first_end, last_end;
};

struct AttentionArgs {
  Source query, key, value; // [Tq, Hq, D], [Tk, Hk, D], [Tk, Hk, Dv]
  int64_t queries, keys, heads, key_heads, groups, size, value_size;
  int64_t slots, padded_size, padded_value_size; // multiples of 32
  const int32_t* query_node; // [Tq]
  const int32_t* slot_key; // [slots], -1 if empty
  const int32_t *slot_birth, *slot_end; // [slots]
  const Chunk* chunks; // [slots / 32]
  const int32_t* query_positions; // [Tq], null without a window and slopes
  const int32_t* key_positions; // [Tk]
  float scale;
  int64_t window; // 0 for no window
  float softcap; // 0 for no cap
  const float* sinks; // [Hq] or null, one more score of every row, whose value is 0
  const float* slopes; // [Hq] or null, times (key position - query position), added to the scores
  // The schedule; blocks are runs of slots, whole chunks of one segment.
  int64_t tiles, tile_rows, key_block; // tile_rows: rows of the largest tile, a multiple of 32
  int64_t threads; // number of threads, which take tiles in turn
  const int32_t *tile_start, *tile_stop, *block_ptr, *block_start, *block_stop;
  const bool* block_full;
  // Packed operands: keys [terms][Hk][slots][padded_size], values [terms][Hk][slots / 32][padded_value_size][32].
  void* packed_keys;
  void* packed_values;
  // With few tiles each segment is a task of its own (parts > 0), which leaves its state here:
  // sums [tiles][Hk][parts][tile_rows / 32][padded_value_size][32], maximum [tiles][Hk][parts][tile_rows], two totals each.
  int64_t parts;
  float *part_sums, *part_maximum, *part_total;
  // [Tq, Hq, Dv] contiguous, float or bf16; lse float [Tq, Hq] or null.
  void* out;
  bool out_bf16;
  float* lse;
};

// Rows, each of which sees its own ranges of keys.
struct DecodeAttentionArgs {
  Source query; // [B, Hq, D]
  const Source *keys, *values; // for each part [Tk, Hk, D] and [Tk, Hk, Dv]
  int64_t heads, groups, size, value_size, padded_size, padded_value_size; // padded to multiples of 32
  // Row b sees keys start[r]..stop[r]-1 of part[r] for r in row_ptr[b]..row_ptr[b + 1]-1.
  const int32_t *row_ptr, *part, *start, *stop;
  float scale, softcap; // softcap 0 for no cap
  const float *sinks, *slopes; // as above
  const int32_t* offset; // position of each range's first key, less that of its row; read only with slopes
  float *out, *lse; // [B, Hq, Dv] and [B, Hq] contiguous
};

// The state of 32 rows after the vocabulary read so far; see linear_logprob_tile.inl.
struct alignas(64) LogprobState {
  float maximum[kStrip]; // log2 units
  float total[kStrip], total_lost[kStrip]; // the sum is total - total_lost
  float weighted[kStrip], weighted_lost[kStrip];
  float best[kStrip]; // largest logit, nats
  float picked[kStrip]; // logit of the target
  int32_t argmax[kStrip];
  int32_t target[kStrip];
};

struct LogprobArgs {
  Source hidden, weight; // [R, E], [V, E]
  Blocks weight_blocks; // the weight, if its count is not 0
  int64_t rows, vocabulary, size, padded_size;
  const int64_t* target; // [R]
  const int64_t* labels; // [L]
  int64_t label_count;
  const float* bias; // [V] or null
  float scale, softcap;
  // Work is cut into blocks of rows (a multiple of 32), whose packed states stay in cache, times slices of the
  // vocabulary (a multiple of 32), so that few rows still occupy all threads. The slices depend neither on the number of
  // threads nor on that of rows.
  int64_t row_block, blocks, slice_size;
  LogprobState* states; // [slices][blocks][row_block / 32]
  float* label_logits; // [R, L]
};

enum class Activation { silu, gelu_tanh };

// The use of the products: store them, add them to the output, or activate their first half and multiply it by the
// second.
enum class After { store, add, gate };

struct LinearArgs {
  Source input; // [T, E]
  int64_t rows, width, size, padded_size;
  const void* packed; // the weight, [terms][F / 32] strips, as pack_weight leaves it
  Blocks blocks; // the weight, if its count is not 0
  int64_t strips; // F / 32, rounded up
  const float* bias; // [F] or null
  // Work is cut into blocks of rows (a multiple of 32), whose operands stay in cache, times slices of the strips. Each
  // output is one product over the whole depth, so results do not depend on the cut.
  int64_t row_block, slice_strips;
  After after;
  Activation activation; // for After::gate
  void* out; // [T, F], or [T, F / 2] after the gate; float, or bf16 after the gate
  int64_t out_stride;
  bool out_bf16;
};

// Of which rows a workspace has the operands, from an earlier task of the same thread; none at first.
struct Held {
  const LinearArgs* args;
  int64_t block;
  int32_t rest; // blocks of inputs of which one scale left something
};

struct PackArgs {
  Source weight; // [F, E]
  int64_t width, size, padded_size, strips;
  void* packed;
  // Powers of two by which the columns are multiplied, [padded_size]; the inputs are divided by them. Read only for integers
  // with scales.
  const float* columns;
};

// Token-wise ops: fp32 rows in, the type of the next operand out.
struct NormArgs {
  const float* input; // [T, E]
  int64_t input_stride, size;
  const float* weight; // [E]
  float epsilon;
  void* out; // [T, E]
  int64_t out_stride;
  bool out_bf16;
};

struct RotaryArgs {
  const float* input; // [T, H, D]
  int64_t token_stride, head_stride, heads, size, rotated; // the first `rotated` of D turn, the others pass
  const float *cosine, *sine; // [T, rotated]
  int64_t angle_stride;
  void* out; // [T, H, D] contiguous
  bool out_bf16, hadamard;
};

// Return the size of the Hadamard matrices by which a head's values are multiplied: the largest power of two that
// divides the head's size.
constexpr int64_t kMostHadamard = 1024;
inline int64_t hadamard_block(int64_t size) { return size > kMostHadamard ? 1 : size & -size; }

struct GateArgs {
  const float* gate; // [T, F]
  int64_t gate_stride;
  const float* up; // [T, F]
  int64_t up_stride, size;
  Activation kind;
  void* out; // [T, F] contiguous
  bool out_bf16;
};

// A recurrence of linear attention over chains of tokens; see recurrent_tile.inl. All sources are float.
struct ScanArgs {
  Source query, key, value; // [T, Hk, D] twice, [T, Hv, Dv]
  Source gate; // [T, Hv], or [T, Hv, D] if `channels`
  Source beta; // [T, Hv]; its data are null for linear attention without the delta rule
  int64_t groups, size, value_size; // groups: Hv / Hk
  bool channels;
  float scale; // of queries
  bool unit; // queries and keys are divided by the roots of their sums of squares plus epsilon
  float epsilon;
  float* out; // [T, Hv, Dv] contiguous
  int64_t heads; // Hv
};

// One chain, one head, and some columns of its state.
struct ScanTask {
  int64_t start, tokens, head, column, columns;
  const float* before; // the head's state [D, Dv] before the chain, null for zeros
  float *after, *kept; // where the state after it goes, null for nowhere
};

// A short depthwise convolution over the ancestors of each token.
struct ConvArgs {
  static constexpr int64_t kMostTaps = 16;
  const float* input; // [T, C]
  int64_t input_stride, size, taps; // taps: K
  const float* initial; // rows [C] of the texts before, contiguous, or null
  const int64_t* ancestors; // [T, K - 1], -1 for none, -2 - i for row i of `initial`
  const float* weight; // [K, C], that of the token itself first
  const float* bias; // [C] or null
  bool silu; // of the result
  float* out; // [T, C] contiguous
};

struct Kernels {
  int64_t operand_bytes; // of one element of a packed operand, all its terms together
  // Bytes of a packed weight of so many strips and columns.
  int64_t (*packed_bytes)(int64_t strips, int64_t padded_size);
  // Pack one chunk of 32 slots of one head.
  void (*pack_keys)(const AttentionArgs&, int64_t head, int64_t chunk);
  // Attend with one tile of queries for one key head, over all segments (part -1) or one.
  void (*attend)(const AttentionArgs&, int64_t tile, int64_t head, int64_t part, void* workspace);
  // Join the parts of a tile.
  void (*join)(const AttentionArgs&, int64_t tile, int64_t head, void* workspace);
  // Attend with one row for one key head.
  void (*attend_row)(const DecodeAttentionArgs&, int64_t row, int64_t head, void* workspace);
  // Score one block of rows against one slice of the vocabulary.
  void (*logprob)(const LogprobArgs&, int64_t block, int64_t slice, void* workspace);
  // Pack one strip of 32 weight rows.
  void (*pack_weight)(const PackArgs&, int64_t strip, void* workspace);
  // Multiply one block of rows by one slice of the weight.
  void (*linear)(const LinearArgs&, int64_t block, int64_t slice, void* workspace, Held* held);
  // Do the same with a weight of blocks.
  void (*linear_blocks)(const LinearArgs&, int64_t block, int64_t slice, void* workspace, Held* held);
  // Write a strip of a weight of blocks to where `pack_weight` puts it: null if the operands have scales, or unpacking them
  // takes little beside a product.
  void (*unpack_strip)(const LinearArgs&, int64_t strip, void* packed);
  // Write the values of 32 rows (a strip) and 32 columns from `column` on, rows `stride` apart.
  void (*unpack_block)(const Blocks&, int64_t strip, int64_t column, float* out, int64_t stride);
  // Run the token-wise ops on rows begin to end.
  void (*rms_norm)(const NormArgs&, int64_t begin, int64_t end);
  void (*rotary)(const RotaryArgs&, int64_t begin, int64_t end);
  void (*gate)(const GateArgs&, int64_t begin, int64_t end);
  // Run a recurrence over one chain: only in the tables of float operands.
  void (*scan)(const ScanArgs&, const ScanTask&, void* workspace);
  // Convolve tokens begin to end: only in those tables.
  void (*convolve)(const ConvArgs&, int64_t begin, int64_t end);
  // Bytes of workspace for each thread, 64-byte aligned.
  int64_t (*attend_workspace)(const AttentionArgs&);
  int64_t (*attend_row_workspace)(const DecodeAttentionArgs&);
  int64_t (*logprob_workspace)(const LogprobArgs&);
  int64_t (*linear_workspace)(const LinearArgs&);
  int64_t (*linear_blocks_workspace)(const LinearArgs&);
  int64_t (*pack_weight_workspace)(const PackArgs&);
  int64_t (*scan_workspace)(const ScanArgs&, int64_t columns);
  // Called around the work of a thread: configure and release tile registers.
  void (*enter)();
  void (*leave)();
};

// Return the kernels of an instruction set for operands of `mode`, or null if it has none.
const Kernels* kernels_portable(Mode mode);
const Kernels* kernels_avx2(Mode mode);
const Kernels* kernels_avx2_vnni(Mode mode);
const Kernels* kernels_avx512(Mode mode);
const Kernels* kernels_avx512_vnni(Mode mode);
const Kernels* kernels_avx512_bf16(Mode mode);
const Kernels* kernels_amx(Mode mode);
const Kernels* kernels_neon(Mode mode);
const Kernels* kernels_neon_bf16(Mode mode);

// Return the kernels of exactly this instruction set, or null.
const Kernels* kernels_of(Isa isa, Mode mode);

inline int64_t round_up(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

} // namespace fastreader
