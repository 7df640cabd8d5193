#pragma once
#include "../shifted/device.cuh"

template <>
struct ebb::Format<ebb::kInt2Direct> : ebb::ShiftedFormat<2, ebb::ShiftStrategy::kDirect, false> {};
