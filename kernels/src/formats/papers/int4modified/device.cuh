#pragma once
#include "../shifted/device.cuh"

template <>
struct ebb::Format<ebb::kInt4Modified>
    : ebb::ShiftedFormat<4, ebb::ShiftStrategy::kModified, false> {};
