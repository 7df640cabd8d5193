// Decode attention at 16 bit with scores of any kind (scores.cuh), of 16 to 112 channels a head but
// 64: decode.cuh.
#include "decode.cuh"

EBB_DECODE_ANY(decode_d16_w4_s6_any, 16, 4, 6, 5)
EBB_DECODE_ANY(decode_d32_w4_s6_any, 32, 4, 6, 3)
EBB_DECODE_ANY(decode_d48_w4_s5_any, 48, 4, 5, 3)
EBB_DECODE_ANY(decode_d80_w4_s3_any, 80, 4, 3, 3)
EBB_DECODE_ANY(decode_d96_w4_s2_any, 96, 4, 2, 3)
EBB_DECODE_ANY(decode_d112_w4_s2_any, 112, 4, 2, 3)
