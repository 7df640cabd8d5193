#pragma once
#include "cuda/formats/format.cuh"

template <>
struct ebb::Format<ebb::kInt4t> : ebb::ByTokenFormat<4> {};
