#pragma once
#include "../grouped/device.cuh"

template <>
struct ebb::Format<ebb::kInt2g32> : ebb::GroupedFormat<2> {};
