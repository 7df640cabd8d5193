#pragma once
#include "../reranked/device.cuh"

template <>
struct ebb::Format<ebb::kKitty25Variance>
    : ebb::RerankedFormat<2, ebb::RerankedEncoder::kByVariance> {};
