#pragma once
#include "../grouped/device.cuh"

namespace ebb {

template <>
struct Format<kKvmix11> : GroupedFormat<3> {};

}  // namespace ebb
