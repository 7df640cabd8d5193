// Streamed products of weights packed as int8.
#include "../common/kernel.cuh"
#include "stream_kernel.cuh"

EBB_PACKED_INT8(EBB_STREAM_PACKED)
