#pragma once
#include "../reranked/device.cuh"

template <>
struct ebb::Format<ebb::kKitty12Variance>
    : ebb::RerankedFormat<1, ebb::RerankedEncoder::kByVariance> {};
