// Streamed products of weights packed as fp4.
#include "../common/kernel.cuh"
#include "stream_kernel.cuh"

EBB_PACKED_FP4(EBB_STREAM_PACKED)
