#pragma once
#include "../shifted/device.cuh"

template <>
struct ebb::Format<ebb::kInt4tModified>
    : ebb::ShiftedFormat<4, ebb::ShiftStrategy::kModified, true> {};
