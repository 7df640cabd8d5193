// Decode attention at 16 bit, of 64 and 128 channels a head. See decode.cuh.
#include "decode.cuh"

EBB_DECODE(decode_d128_w4_s2, 128, 4, 2, 3)
EBB_DECODE(decode_d128_w4_s3, 128, 4, 3, 2)
EBB_DECODE(decode_d128_w2_s3, 128, 2, 3, 4)
EBB_DECODE(decode_d128_w2_s4, 128, 2, 4, 3)
EBB_DECODE(decode_d128_w8_s3, 128, 8, 3, 1)
EBB_DECODE(decode_d64_w4_s4, 64, 4, 4, 3)
EBB_DECODE(decode_d64_w4_s6, 64, 4, 6, 2)
