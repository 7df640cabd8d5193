#include "product.cuh"

EBB_PACKED_INT4(EBB_PACKED_EXPERTS)
