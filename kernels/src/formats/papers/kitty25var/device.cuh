#pragma once
#include "../reranked/device.cuh"

namespace ebb {

template <>
struct Format<kKitty25Variance> : RerankedFormat<2, RerankedEncoder::kByVariance> {};

}  // namespace ebb
