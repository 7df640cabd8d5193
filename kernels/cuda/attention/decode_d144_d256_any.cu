// Decode attention at 16 bit with scores of any kind (scores.cuh), of 144 to 256 channels a head:
// decode.cuh.
#include "decode.cuh"

EBB_DECODE_ANY(decode_d144_w2_s2_any, 144, 2, 2, 5)
EBB_DECODE_ANY(decode_d160_w2_s2_any, 160, 2, 2, 5)
EBB_DECODE_ANY(decode_d176_w2_s2_any, 176, 2, 2, 4)
EBB_DECODE_ANY(decode_d192_w2_s2_any, 192, 2, 2, 4)
EBB_DECODE_ANY(decode_d208_w2_s2_any, 208, 2, 2, 4)
EBB_DECODE_ANY(decode_d224_w2_s2_any, 224, 2, 2, 3)
EBB_DECODE_ANY(decode_d240_w2_s2_any, 240, 2, 2, 3)
EBB_DECODE_ANY(decode_d256_w2_s2_any, 256, 2, 2, 3)
