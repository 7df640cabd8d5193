// Chunked-prefill attention at 16 bit with scores of any kind (scores.cuh), of 16 to 112 channels a
// head but 64: prefill.cuh.
#include "prefill.cuh"

EBB_PREFILL_ANY(prefill_d16_any, 16, 3)
EBB_PREFILL_ANY(prefill_d32_any, 32, 3)
EBB_PREFILL_ANY(prefill_d48_any, 48, 3)
EBB_PREFILL_ANY(prefill_d80_any, 80, 2)
EBB_PREFILL_ANY(prefill_d96_any, 96, 2)
EBB_PREFILL_ANY(prefill_d112_any, 112, 2)
