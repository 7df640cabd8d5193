#pragma once
#include "../reranked/device.cuh"

template <>
struct ebb::Format<ebb::kKitty25Random> : ebb::RerankedFormat<2, ebb::RerankedEncoder::kAtRandom> {
};
