// Chunked-prefill attention at 16 bit for sm_90a. See prefill_wgmma.cuh.
#include "../common/kernel.cuh"
#include "prefill_wgmma.cuh"

// The suffix: stages of the rings; any: scores of any kind (scores.cuh).
#define EBB_PREFILL_WGMMA_OF(NAME, D, STAGES, ANY)                                              \
  EBB_KERNEL(NAME, ebb::PrefillWgmmaParams, (ebb::PrefillWgmma<D, STAGES, ANY>::kThreads), 1) { \
    EBB_DYNAMIC_SHARED(shared);                                                                 \
    ebb::PrefillWgmma<D, STAGES, ANY>::run(p, shared);                                          \
  }
#define EBB_PREFILL_WGMMA(NAME, D, STAGES) EBB_PREFILL_WGMMA_OF(NAME, D, STAGES, false)

EBB_PREFILL_WGMMA(prefill_wgmma_d128_s2, 128, 2)
EBB_PREFILL_WGMMA(prefill_wgmma_d128_s3, 128, 3)
EBB_PREFILL_WGMMA(prefill_wgmma_d64_s2, 64, 2)
EBB_PREFILL_WGMMA(prefill_wgmma_d64_s4, 64, 4)
EBB_PREFILL_WGMMA_OF(prefill_wgmma_d128_s2_any, 128, 2, true)
EBB_PREFILL_WGMMA_OF(prefill_wgmma_d64_s2_any, 64, 2, true)
