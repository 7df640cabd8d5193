// Decode attention over pages of any format but polar keys, with scores of any kind (scores.cuh),
// by the copy engine of sm_90: decode_mixed.cuh.
#include "decode_mixed.cuh"

EBB_DECODE_MIXED_BULK(decode_mixed_d128_h4_any, 128, 1, false, true)
EBB_DECODE_MIXED_BULK(decode_mixed_d128_h8_any, 128, 2, false, true)
EBB_DECODE_MIXED_BULK(decode_mixed_d64_h4_any, 64, 1, false, true)
EBB_DECODE_MIXED_BULK(decode_mixed_d64_h8_any, 64, 2, false, true)
EBB_DECODE_MIXED_BULK(decode_mixed_d128_h16_any, 128, 4, false, true)
EBB_DECODE_MIXED_BULK(decode_mixed_d64_h16_any, 64, 4, false, true)
