#pragma once
#include "../reranked/device.cuh"

template <>
struct ebb::Format<ebb::kKitty12Random> : ebb::RerankedFormat<1, ebb::RerankedEncoder::kAtRandom> {
};
