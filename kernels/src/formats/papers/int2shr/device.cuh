#pragma once
#include "../shifted/device.cuh"

template <>
struct ebb::Format<ebb::kInt2Shift> : ebb::ShiftedFormat<2, ebb::ShiftedEncoder::kPlain> {};
