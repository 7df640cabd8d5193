#pragma once
#include "cuda/formats/format.cuh"

template <>
struct ebb::Format<ebb::kInt8t> : ebb::ByTokenFormat<8> {};
