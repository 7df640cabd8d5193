#pragma once
#include "cuda/formats/format.cuh"

template <>
struct ebb::Format<ebb::kKitty25> : ebb::BoostedFormat<2> {
  static constexpr uint32_t kCost = 8;
};
