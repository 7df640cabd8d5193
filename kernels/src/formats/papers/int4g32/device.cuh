#pragma once
#include "../grouped/device.cuh"

template <>
struct ebb::Format<ebb::kInt4g32> : ebb::GroupedFormat<4> {};
