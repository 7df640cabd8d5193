#pragma once
#include "../polar/device.cuh"

template <>
struct ebb::Format<ebb::kPolar44> : ebb::PolarFormat<4, false> {};
