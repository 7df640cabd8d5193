#pragma once
#include "../polar/published.cuh"

template <>
struct ebb::Format<ebb::kPolar44G128> : ebb::PublishedPolarFormat<4, 128> {};
