#pragma once
#include "cuda/formats/format.cuh"

namespace ebb {

template <>
struct Format<kInt2> : DenseFormat<2> {
  static constexpr uint32_t kCost = 6;
};

}  // namespace ebb
