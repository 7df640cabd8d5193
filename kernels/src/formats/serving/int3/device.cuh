#pragma once
#include "cuda/formats/format.cuh"

namespace ebb {

template <>
struct Format<kInt3> : SplitFormat<2> {
  static constexpr uint32_t kCost = 10;
};

}  // namespace ebb
