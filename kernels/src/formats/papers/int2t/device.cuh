#pragma once
#include "cuda/formats/format.cuh"

template <>
struct ebb::Format<ebb::kInt2t> : ebb::ByTokenFormat<2> {};
