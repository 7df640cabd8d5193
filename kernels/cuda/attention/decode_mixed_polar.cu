// Decode attention over pages of any format, by the copy engine of sm_90. See decode_mixed.cuh.
// Polar keys are a tenth of the code and need most registers: layouts without them take
// decode_mixed.cu.
#include "decode_mixed.cuh"

EBB_DECODE_MIXED_BULK(decode_mixed_polar_d128_h4, 128, 1, true, false)
EBB_DECODE_MIXED_BULK(decode_mixed_polar_d128_h8, 128, 2, true, false)
EBB_DECODE_MIXED_BULK(decode_mixed_polar_d64_h4, 64, 1, true, false)
EBB_DECODE_MIXED_BULK(decode_mixed_polar_d64_h8, 64, 2, true, false)
