#pragma once
#include "../shifted/device.cuh"

template <>
struct ebb::Format<ebb::kInt2tModified>
    : ebb::ShiftedFormat<2, ebb::ShiftStrategy::kModified, true> {};
