// Matrix products of up to 64 rows for sm_90a. See stream.cuh.
#include "../common/kernel.cuh"
#include "stream_kernel.cuh"

EBB_STREAM(product_stream_n8, 8, PlainWeights)
EBB_STREAM(product_stream_n16, 16, PlainWeights)
EBB_STREAM(product_stream_n32, 32, PlainWeights)
EBB_STREAM(product_stream_n64, 64, PlainWeights)
