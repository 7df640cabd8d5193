// Chunked-prefill attention at 16 bit with scores of any kind (scores.cuh), of 64 and 128 channels
// a head: prefill.cuh.
#include "prefill.cuh"

EBB_PREFILL_ANY(prefill_d128_any, 128, 2)
EBB_PREFILL_ANY(prefill_d64_any, 64, 3)
