// Decode attention over pages of any format, without the copy engine. See decode_mixed.cuh.
#include "decode_mixed.cuh"

EBB_DECODE_MIXED(decode_mixed_ring_d128_h4, 128, 1, ebb::Way::kRing, true)
EBB_DECODE_MIXED(decode_mixed_ring_d128_h8, 128, 2, ebb::Way::kRing, true)
EBB_DECODE_MIXED(decode_mixed_ring_d64_h4, 64, 1, ebb::Way::kRing, true)
EBB_DECODE_MIXED(decode_mixed_ring_d64_h8, 64, 2, ebb::Way::kRing, true)
