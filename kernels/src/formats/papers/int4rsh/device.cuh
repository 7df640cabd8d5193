#pragma once
#include "../shifted/device.cuh"

template <>
struct ebb::Format<ebb::kInt4RoundingShift>
    : ebb::ShiftedFormat<4, ebb::ShiftedEncoder::kRounding> {};
