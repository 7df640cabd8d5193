#pragma once
#include "../shifted/device.cuh"

template <>
struct ebb::Format<ebb::kInt4tDirect> : ebb::ShiftedFormat<4, ebb::ShiftStrategy::kDirect, true> {};
