#pragma once
#include "cuda/formats/format.cuh"

template <>
struct ebb::Format<ebb::kF16> : ebb::RowsFormat {
  static constexpr uint32_t kCost = 24;
};
