// Decode attention over pages of any format. See decode_mixed.cuh.
#include "decode_mixed.cuh"

#define EBB_DECODE_MIXED(NAME, D, SETS)                                                                                                  \
  EBB_KERNEL_EARLY(NAME, ebb::MixedDecodeParams, (ebb::MixedDecode<D, 2, SETS>::kThreads), (ebb::MixedDecode<D, 2, SETS>::kCtas)) {      \
    EBB_DYNAMIC_SHARED(shared);                                                                                                          \
    ebb::MixedDecode<D, 2, SETS> kernel(p, shared);                                                                                      \
    kernel.run();                                                                                                                        \
  }

// For up to four and up to eight query heads of a KV head.
EBB_DECODE_MIXED(decode_mixed_d128_h4, 128, 1)
EBB_DECODE_MIXED(decode_mixed_d128_h8, 128, 2)
EBB_DECODE_MIXED(decode_mixed_d64_h4, 64, 1)
EBB_DECODE_MIXED(decode_mixed_d64_h8, 64, 2)
