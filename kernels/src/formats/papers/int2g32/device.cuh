#pragma once
#include "../grouped/device.cuh"

namespace ebb {

template <>
struct Format<kInt2g32> : GroupedFormat<2> {};

}  // namespace ebb
