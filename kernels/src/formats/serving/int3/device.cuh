#pragma once
#include "cuda/formats/format.cuh"

template <>
struct ebb::Format<ebb::kInt3> : ebb::SplitFormat<2> {
  static constexpr uint32_t kCost = 10;
};
