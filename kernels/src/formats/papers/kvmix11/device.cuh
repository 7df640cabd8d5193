#pragma once
#include "../grouped/device.cuh"

template <>
struct ebb::Format<ebb::kKvmix11> : ebb::GroupedFormat<3> {};
