#pragma once
#include "cuda/formats/format.cuh"

namespace ebb {

template <>
struct Format<kF16> : RowsFormat {
  static constexpr uint32_t kCost = 24;
};

}  // namespace ebb
