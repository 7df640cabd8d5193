#pragma once
#include "../shifted/device.cuh"

template <>
struct ebb::Format<ebb::kInt2RoundingShift>
    : ebb::ShiftedFormat<2, ebb::ShiftedEncoder::kRounding> {};
