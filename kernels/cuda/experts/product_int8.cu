#include "product.cuh"

EBB_PACKED_INT8(EBB_PACKED_EXPERTS)
