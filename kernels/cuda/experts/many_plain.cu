#include "many.cuh"

EBB_EXPERTS_MANY(plain, ebb::ManyPlain)
