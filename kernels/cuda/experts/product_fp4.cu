#include "product.cuh"

EBB_PACKED_FP4(EBB_PACKED_EXPERTS)
