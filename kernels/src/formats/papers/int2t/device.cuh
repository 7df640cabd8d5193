#pragma once
#include "../by_token/device.cuh"

namespace ebb {

template <>
struct Format<kInt2t> : ByTokenFormat<2> {};

}  // namespace ebb
