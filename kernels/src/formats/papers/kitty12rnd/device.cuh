#pragma once
#include "../reranked/device.cuh"

namespace ebb {

template <>
struct Format<kKitty12Random> : RerankedFormat<1, RerankedEncoder::kAtRandom> {};

}  // namespace ebb
