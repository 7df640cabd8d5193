// Matrix products of up to 64 rows for sm_90a. See stream.cuh.
#include "../common/kernel.cuh"
#include "stream.cuh"

// The suffix: the most rows.
#define EBB_STREAM(NAME, N)                                                        \
  EBB_KERNEL_PHASED(NAME, ebb::StreamParams, ebb::StreamProduct<N>::kThreads, 2) { \
    EBB_DYNAMIC_SHARED(shared);                                                    \
    ebb::let_next_start();                                                         \
    ebb::StreamProduct<N>::run(p, shared);                                         \
  }

EBB_STREAM(product_stream_n8, 8)
EBB_STREAM(product_stream_n16, 16)
EBB_STREAM(product_stream_n32, 32)
EBB_STREAM(product_stream_n64, 64)
