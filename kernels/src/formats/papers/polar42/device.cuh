#pragma once
#include "../polar/device.cuh"

namespace ebb {

template <>
struct Format<kPolar42> : PolarFormat<2, false> {};

}  // namespace ebb
