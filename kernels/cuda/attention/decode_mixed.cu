// Decode attention over pages of any format but polar keys, by the copy engine of sm_90. See
// decode_mixed.cuh.
#include "decode_mixed.cuh"

EBB_DECODE_MIXED_BULK(decode_mixed_d128_h4, 128, 1, false, false)
EBB_DECODE_MIXED_BULK(decode_mixed_d128_h8, 128, 2, false, false)
EBB_DECODE_MIXED_BULK(decode_mixed_d64_h4, 64, 1, false, false)
EBB_DECODE_MIXED_BULK(decode_mixed_d64_h8, 64, 2, false, false)
EBB_DECODE_MIXED_BULK(decode_mixed_d128_h16, 128, 4, false, false)
EBB_DECODE_MIXED_BULK(decode_mixed_d64_h16, 64, 4, false, false)
