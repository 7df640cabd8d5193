// Chunked-prefill attention at 16 bit for sm_90a. See prefill_wgmma.cuh.
#include "../common/kernel.cuh"
#include "prefill_wgmma.cuh"

// The suffix: stages of the rings.
#define EBB_PREFILL_WGMMA(NAME, D, STAGES)                                                 \
  EBB_KERNEL(NAME, ebb::PrefillWgmmaParams, (ebb::PrefillWgmma<D, STAGES>::kThreads), 1) { \
    EBB_DYNAMIC_SHARED(shared);                                                            \
    ebb::PrefillWgmma<D, STAGES>::run(p, shared);                                          \
  }

EBB_PREFILL_WGMMA(prefill_wgmma_d128_s2, 128, 2)
EBB_PREFILL_WGMMA(prefill_wgmma_d128_s3, 128, 3)
EBB_PREFILL_WGMMA(prefill_wgmma_d64_s2, 64, 2)
EBB_PREFILL_WGMMA(prefill_wgmma_d64_s4, 64, 4)
