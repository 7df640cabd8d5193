#pragma once
#include "../shifted/device.cuh"

namespace ebb {

template <>
struct Format<kInt4RoundingShift> : ShiftedFormat<4, ShiftedEncoder::kRounding> {};

}  // namespace ebb
