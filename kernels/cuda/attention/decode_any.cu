// Decode attention at 16 bit with scores of any kind (scores.cuh), of 64 and 128 channels a head.
// See decode.cuh.
#include "decode.cuh"

EBB_DECODE_ANY(decode_d128_w4_s2_any, 128, 4, 2, 3)
EBB_DECODE_ANY(decode_d64_w4_s4_any, 64, 4, 4, 3)
