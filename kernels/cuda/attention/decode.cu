// Decode attention at 16 bit. See decode.cuh.
#include "../common/kernel.cuh"
#include "decode.cuh"

#define EBB_DECODE(NAME, D, WARPS, STAGES, CTAS)              \
  EBB_KERNEL(NAME, ebb::DecodeParams, WARPS * 32, CTAS) {     \
    EBB_DYNAMIC_SHARED(shared);                               \
    ebb::DecodeAttention<D, WARPS, STAGES> kernel(p, shared); \
    kernel.run();                                             \
  }

// The suffix: warps of a CTA, stages of a warp's ring.
EBB_DECODE(decode_d128_w4_s2, 128, 4, 2, 3)
EBB_DECODE(decode_d128_w4_s3, 128, 4, 3, 2)
EBB_DECODE(decode_d128_w2_s3, 128, 2, 3, 4)
EBB_DECODE(decode_d128_w2_s4, 128, 2, 4, 3)
EBB_DECODE(decode_d128_w8_s3, 128, 8, 3, 1)
EBB_DECODE(decode_d64_w4_s4, 64, 4, 4, 3)
EBB_DECODE(decode_d64_w4_s6, 64, 4, 6, 2)
