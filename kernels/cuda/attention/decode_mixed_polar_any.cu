// Decode attention over pages of any format with scores of any kind (scores.cuh), by the copy
// engine of sm_90: decode_mixed.cuh.
#include "decode_mixed.cuh"

EBB_DECODE_MIXED_BULK(decode_mixed_polar_d128_h4_any, 128, 1, true, true)
EBB_DECODE_MIXED_BULK(decode_mixed_polar_d128_h8_any, 128, 2, true, true)
EBB_DECODE_MIXED_BULK(decode_mixed_polar_d64_h4_any, 64, 1, true, true)
EBB_DECODE_MIXED_BULK(decode_mixed_polar_d64_h8_any, 64, 2, true, true)
