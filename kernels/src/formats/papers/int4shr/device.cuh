#pragma once
#include "../shifted/device.cuh"

template <>
struct ebb::Format<ebb::kInt4Shift> : ebb::ShiftedFormat<4, ebb::ShiftedEncoder::kPlain> {};
