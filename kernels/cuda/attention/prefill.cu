// Chunked-prefill attention at 16 bit. See prefill.cuh.
#include "../common/kernel.cuh"
#include "prefill.cuh"

#define EBB_PREFILL(NAME, D, CTAS)                                                 \
  EBB_KERNEL(NAME, ebb::PrefillParams, ebb::PrefillAttention<D>::kThreads, CTAS) { \
    EBB_DYNAMIC_SHARED(shared);                                                    \
    ebb::PrefillAttention<D>::run(p, shared);                                      \
  }

EBB_PREFILL(prefill_d128, 128, 2)
EBB_PREFILL(prefill_d64, 64, 3)
