#pragma once
#include "../polar/published.cuh"

template <>
struct ebb::Format<ebb::kPolar42G64> : ebb::PublishedPolarFormat<2, 64> {};
