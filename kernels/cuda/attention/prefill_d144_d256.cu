// Chunked-prefill attention at 16 bit, of 144 to 256 channels a head. See prefill.cuh.
#include "prefill.cuh"

EBB_PREFILL(prefill_d144, 144, 2)
EBB_PREFILL(prefill_d160, 160, 2)
EBB_PREFILL(prefill_d176, 176, 2)
EBB_PREFILL(prefill_d192, 192, 2)
EBB_PREFILL(prefill_d208, 208, 2)
EBB_PREFILL(prefill_d224, 224, 2)
EBB_PREFILL(prefill_d240, 240, 2)
EBB_PREFILL(prefill_d256, 256, 2)
