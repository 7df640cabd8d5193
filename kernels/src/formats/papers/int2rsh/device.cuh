#pragma once
#include "../shifted/device.cuh"

namespace ebb {

template <>
struct Format<kInt2RoundingShift> : ShiftedFormat<2, ShiftedEncoder::kRounding> {};

}  // namespace ebb
