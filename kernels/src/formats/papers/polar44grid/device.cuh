#pragma once
#include "../polar/device.cuh"

template <>
struct ebb::Format<ebb::kPolar44Grid> : ebb::PolarFormat<4, true> {};
