// How streamed products are declared.
#pragma once
#include "stream.cuh"

#define EBB_STREAM(NAME, N, WEIGHTS)                                                          \
  EBB_KERNEL_PHASED(NAME, ebb::StreamParams, (ebb::StreamProduct<N, ebb::WEIGHTS>::kThreads), \
                    (ebb::StreamProduct<N, ebb::WEIGHTS>::kCtas)) {                           \
    EBB_DYNAMIC_SHARED(shared);                                                               \
    ebb::let_next_start();                                                                    \
    ebb::StreamProduct<N, ebb::WEIGHTS>::run(p, shared);                                      \
  }

// Of a packed format, for each number of rows, which the names end with.
#define EBB_STREAM_PACKED(FORMAT, CHUNK)                            \
  EBB_STREAM(product_##FORMAT##_n8, 8, PackedWeights<ebb::CHUNK>)   \
  EBB_STREAM(product_##FORMAT##_n16, 16, PackedWeights<ebb::CHUNK>) \
  EBB_STREAM(product_##FORMAT##_n32, 32, PackedWeights<ebb::CHUNK>) \
  EBB_STREAM(product_##FORMAT##_n64, 64, PackedWeights<ebb::CHUNK>) \
  EBB_STREAM(product_##FORMAT##_n128, 128, PackedWeights<ebb::CHUNK>)
