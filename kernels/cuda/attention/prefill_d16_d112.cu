// Chunked-prefill attention at 16 bit, of up to 112 channels a head but 64. See prefill.cuh.
#include "prefill.cuh"

EBB_PREFILL(prefill_d16, 16, 3)
EBB_PREFILL(prefill_d32, 32, 3)
EBB_PREFILL(prefill_d48, 48, 3)
EBB_PREFILL(prefill_d80, 80, 2)
EBB_PREFILL(prefill_d96, 96, 2)
EBB_PREFILL(prefill_d112, 112, 2)
