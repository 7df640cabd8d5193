#pragma once
#include "../reranked/device.cuh"

namespace ebb {

template <>
struct Format<kKitty12Variance> : RerankedFormat<1, RerankedEncoder::kByVariance> {};

}  // namespace ebb
