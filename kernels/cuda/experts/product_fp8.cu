#include "product.cuh"

EBB_PACKED_FP8(EBB_PACKED_EXPERTS)
