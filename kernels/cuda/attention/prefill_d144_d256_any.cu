// Chunked-prefill attention at 16 bit with scores of any kind (scores.cuh), of 144 to 256 channels
// a head: prefill.cuh.
#include "prefill.cuh"

EBB_PREFILL_ANY(prefill_d144_any, 144, 2)
EBB_PREFILL_ANY(prefill_d160_any, 160, 2)
EBB_PREFILL_ANY(prefill_d176_any, 176, 2)
EBB_PREFILL_ANY(prefill_d192_any, 192, 2)
EBB_PREFILL_ANY(prefill_d208_any, 208, 2)
EBB_PREFILL_ANY(prefill_d224_any, 224, 2)
EBB_PREFILL_ANY(prefill_d240_any, 240, 2)
EBB_PREFILL_ANY(prefill_d256_any, 256, 2)
