#pragma once
#include "../shifted/device.cuh"

namespace ebb {

template <>
struct Format<kInt2Shift> : ShiftedFormat<2, ShiftedEncoder::kPlain> {};

}  // namespace ebb
