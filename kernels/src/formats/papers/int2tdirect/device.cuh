#pragma once
#include "../shifted/device.cuh"

template <>
struct ebb::Format<ebb::kInt2tDirect> : ebb::ShiftedFormat<2, ebb::ShiftStrategy::kDirect, true> {};
