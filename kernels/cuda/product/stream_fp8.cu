// Streamed products of weights packed as fp8.
#include "../common/kernel.cuh"
#include "stream_kernel.cuh"

EBB_PACKED_FP8(EBB_STREAM_PACKED)
