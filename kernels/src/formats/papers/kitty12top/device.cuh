#pragma once
#include "../reranked/device.cuh"

template <>
struct ebb::Format<ebb::kKitty12Top> : ebb::RerankedFormat<1, ebb::RerankedEncoder::kBySixteenBit> {
};
