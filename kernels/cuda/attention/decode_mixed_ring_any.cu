// Decode attention over pages of any format with scores of any kind (scores.cuh), without the copy
// engine: decode_mixed.cuh.
#include "decode_mixed.cuh"

EBB_DECODE_MIXED_RING(decode_mixed_ring_d128_h4_any, 128, 1, true)
EBB_DECODE_MIXED_RING(decode_mixed_ring_d128_h8_any, 128, 2, true)
EBB_DECODE_MIXED_RING(decode_mixed_ring_d64_h4_any, 64, 1, true)
EBB_DECODE_MIXED_RING(decode_mixed_ring_d64_h8_any, 64, 2, true)
