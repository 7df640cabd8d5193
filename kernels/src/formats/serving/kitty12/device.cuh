#pragma once
#include "cuda/formats/format.cuh"

template <>
struct ebb::Format<ebb::kKitty12> : ebb::BoostedFormat<1> {
  static constexpr uint32_t kCost = 7;
};
