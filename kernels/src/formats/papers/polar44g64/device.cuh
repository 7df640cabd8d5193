#pragma once
#include "../polar/published.cuh"

template <>
struct ebb::Format<ebb::kPolar44G64> : ebb::PublishedPolarFormat<4, 64> {};
