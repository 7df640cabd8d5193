#pragma once
#include "cuda/formats/format.cuh"

template <>
struct ebb::Format<ebb::kInt2> : ebb::DenseFormat<2> {
  static constexpr uint32_t kCost = 6;
};
