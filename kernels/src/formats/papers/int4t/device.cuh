#pragma once
#include "../by_token/device.cuh"

namespace ebb {

template <>
struct Format<kInt4t> : ByTokenFormat<4> {};

}  // namespace ebb
