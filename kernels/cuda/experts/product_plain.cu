#include "product.cuh"

EBB_EXPERTS(plain, ebb::PlainExperts)
