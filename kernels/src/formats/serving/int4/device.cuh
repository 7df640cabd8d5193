#pragma once
#include "cuda/formats/format.cuh"

template <>
struct ebb::Format<ebb::kInt4> : ebb::DenseFormat<4> {
  static constexpr uint32_t kCost = 8;
};
