// Decode attention over pages of any format, without the copy engine. See decode_mixed.cuh.
#include "decode_mixed.cuh"

EBB_DECODE_MIXED_RING(decode_mixed_ring_d128_h4, 128, 1, false)
EBB_DECODE_MIXED_RING(decode_mixed_ring_d128_h8, 128, 2, false)
EBB_DECODE_MIXED_RING(decode_mixed_ring_d64_h4, 64, 1, false)
EBB_DECODE_MIXED_RING(decode_mixed_ring_d64_h8, 64, 2, false)
