#pragma once
#include "../by_token/device.cuh"

template <>
struct ebb::Format<ebb::kInt4t> : ebb::ByTokenFormat<4> {};
