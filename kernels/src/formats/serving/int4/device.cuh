#pragma once
#include "cuda/formats/format.cuh"

namespace ebb {

template <>
struct Format<kInt4> : DenseFormat<4> {
  static constexpr uint32_t kCost = 8;
};

}  // namespace ebb
