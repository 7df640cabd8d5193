#pragma once
#include "../shifted/device.cuh"

template <>
struct ebb::Format<ebb::kInt2Modified>
    : ebb::ShiftedFormat<2, ebb::ShiftStrategy::kModified, false> {};
