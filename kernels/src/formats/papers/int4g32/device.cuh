#pragma once
#include "../grouped/device.cuh"

namespace ebb {

template <>
struct Format<kInt4g32> : GroupedFormat<4> {};

}  // namespace ebb
