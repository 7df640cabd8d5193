#pragma once
#include "cuda/formats/format.cuh"

namespace ebb {

template <>
struct Format<kKitty25> : BoostedFormat<2> {
  static constexpr uint32_t kCost = 8;
};

}  // namespace ebb
