// All kernels, each after those it needs; kernels_*.cpp include this inside their own namespace.

#include "simd.inl"
#include "gemm.inl"
#include "blocks.inl"
#include "block_products.inl"
#if !FR_PRODUCTS_ONLY
#include "tree_attention_state.inl"
#include "tree_attention_softmax.inl"
#include "tree_attention_units.inl"
#include "tree_attention_results.inl"
#include "tree_attention_tile.inl"
#include "decode_attention_tile.inl"
#include "linear_logprob_tile.inl"
#endif
#include "pointwise_tile.inl"
#if !FR_PRODUCTS_ONLY && !FR_BF16
#include "causal_conv_tile.inl"
#include "recurrent_tile.inl"
#endif
#include "linear_tile.inl"
#include "table.inl"
