#pragma once
#include "cuda/formats/format.cuh"

template <>
struct ebb::Format<ebb::kInt8> : ebb::DenseFormat<8> {
  static constexpr uint32_t kCost = 12;
};
