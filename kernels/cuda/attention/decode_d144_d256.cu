// Decode attention at 16 bit, of 144 to 256 channels a head. See decode.cuh.
#include "decode.cuh"

EBB_DECODE(decode_d144_w2_s2, 144, 2, 2, 5)
EBB_DECODE(decode_d160_w2_s2, 160, 2, 2, 5)
EBB_DECODE(decode_d176_w2_s2, 176, 2, 2, 4)
EBB_DECODE(decode_d192_w2_s2, 192, 2, 2, 4)
EBB_DECODE(decode_d208_w2_s2, 208, 2, 2, 4)
EBB_DECODE(decode_d224_w2_s2, 224, 2, 2, 3)
EBB_DECODE(decode_d240_w2_s2, 240, 2, 2, 3)
EBB_DECODE(decode_d256_w2_s2, 256, 2, 2, 3)
