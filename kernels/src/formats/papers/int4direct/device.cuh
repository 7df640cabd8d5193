#pragma once
#include "../shifted/device.cuh"

template <>
struct ebb::Format<ebb::kInt4Direct> : ebb::ShiftedFormat<4, ebb::ShiftStrategy::kDirect, false> {};
