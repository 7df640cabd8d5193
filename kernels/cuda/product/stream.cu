// Matrix products of up to 64 rows for sm_90a. See stream.cuh.
#include "../common/kernel.cuh"
#include "stream.cuh"

// The suffixes: outputs of a tile, and the most rows.
#define EBB_STREAM(NAME, HEIGHT, N)                                                              \
  EBB_KERNEL_EARLY(NAME, ebb::StreamParams, (ebb::StreamProduct<HEIGHT, N>::kThreads), 2) {            \
    EBB_DYNAMIC_SHARED(shared);                                                                  \
    ebb::let_next_start();                                                                       \
    ebb::StreamProduct<HEIGHT, N>::run(p, shared);                                               \
  }

EBB_STREAM(product_stream_h128_n8, 128, 8)
EBB_STREAM(product_stream_h128_n16, 128, 16)
EBB_STREAM(product_stream_h128_n32, 128, 32)
EBB_STREAM(product_stream_h128_n64, 128, 64)
EBB_STREAM(product_stream_h256_n8, 256, 8)
EBB_STREAM(product_stream_h256_n16, 256, 16)
EBB_STREAM(product_stream_h256_n32, 256, 32)
EBB_STREAM(product_stream_h256_n64, 256, 64)
