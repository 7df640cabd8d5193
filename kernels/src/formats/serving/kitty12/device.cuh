#pragma once
#include "cuda/formats/format.cuh"

namespace ebb {

template <>
struct Format<kKitty12> : BoostedFormat<1> {
  static constexpr uint32_t kCost = 7;
};

}  // namespace ebb
