// Streamed products of weights packed as int4.
#include "../common/kernel.cuh"
#include "stream_kernel.cuh"

EBB_PACKED_INT4(EBB_STREAM_PACKED)
