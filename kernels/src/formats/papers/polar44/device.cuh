#pragma once
#include "../polar/device.cuh"

namespace ebb {

template <>
struct Format<kPolar44> : PolarFormat<4, false> {};

}  // namespace ebb
