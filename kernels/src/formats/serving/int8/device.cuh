#pragma once
#include "cuda/formats/format.cuh"

namespace ebb {

template <>
struct Format<kInt8> : DenseFormat<8> {
  static constexpr uint32_t kCost = 12;
};

}  // namespace ebb
