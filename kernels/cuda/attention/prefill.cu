// Chunked-prefill attention at 16 bit, of 64 and 128 channels a head. See prefill.cuh.
#include "prefill.cuh"

EBB_PREFILL(prefill_d128, 128, 2)
EBB_PREFILL(prefill_d64, 64, 3)
