// Floats compared as integers, as warps can find the greatest integer by one instruction.
#pragma once
#include <cstdint>

namespace ebb {

// The order of floats as unsigned integers; -0 is 0.
__device__ __forceinline__ uint32_t ordered(float v) {
  const uint32_t bits = __float_as_uint(__fadd_rn(v, 0.f));
  return bits >> 31 ? ~bits : bits | 1u << 31;
}
__device__ __forceinline__ float from_ordered(uint32_t v) {
  return __uint_as_float(v >> 31 ? v & ~(1u << 31) : ~v);
}

}  // namespace ebb
