#pragma once
#include "../by_token/device.cuh"

template <>
struct ebb::Format<ebb::kInt2t> : ebb::ByTokenFormat<2> {};
