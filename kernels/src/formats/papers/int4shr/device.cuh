#pragma once
#include "../shifted/device.cuh"

namespace ebb {

template <>
struct Format<kInt4Shift> : ShiftedFormat<4, ShiftedEncoder::kPlain> {};

}  // namespace ebb
