// Decode attention over pages of any format. See decode_mixed.cuh.
#include "decode_mixed.cuh"

#define EBB_DECODE_MIXED(NAME, D, STAGES)                                               \
  EBB_KERNEL_EARLY(NAME, ebb::MixedDecodeParams, (ebb::MixedDecode<D, STAGES>::kThreads), 1) { \
    EBB_DYNAMIC_SHARED(shared);                                                               \
    ebb::MixedDecode<D, STAGES> kernel(p, shared);                                            \
    kernel.run();                                                                             \
  }

EBB_DECODE_MIXED(decode_mixed_d128, 128, 2)
EBB_DECODE_MIXED(decode_mixed_d64, 64, 2)
