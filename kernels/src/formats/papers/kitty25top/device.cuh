#pragma once
#include "../reranked/device.cuh"

template <>
struct ebb::Format<ebb::kKitty25Top> : ebb::RerankedFormat<2, ebb::RerankedEncoder::kBySixteenBit> {
};
