#pragma once
#include "../polar/device.cuh"

template <>
struct ebb::Format<ebb::kPolar42> : ebb::PolarFormat<2, false> {};
