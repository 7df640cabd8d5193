#pragma once
#include "../reranked/device.cuh"

namespace ebb {

template <>
struct Format<kKitty25Random> : RerankedFormat<2, RerankedEncoder::kAtRandom> {};

}  // namespace ebb
