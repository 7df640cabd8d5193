#pragma once
#include "../polar/device.cuh"

namespace ebb {

template <>
struct Format<kPolar44Grid> : PolarFormat<4, true> {};

}  // namespace ebb
