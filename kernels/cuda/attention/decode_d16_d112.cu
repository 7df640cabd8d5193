// Decode attention at 16 bit, of up to 112 channels a head but 64. See decode.cuh.
#include "decode.cuh"

EBB_DECODE(decode_d16_w4_s6, 16, 4, 6, 5)
EBB_DECODE(decode_d32_w4_s6, 32, 4, 6, 3)
EBB_DECODE(decode_d48_w4_s5, 48, 4, 5, 3)
EBB_DECODE(decode_d80_w4_s3, 80, 4, 3, 3)
EBB_DECODE(decode_d96_w4_s2, 96, 4, 2, 3)
EBB_DECODE(decode_d112_w4_s2, 112, 4, 2, 3)
