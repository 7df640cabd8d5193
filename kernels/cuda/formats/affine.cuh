// Zeros and ranges, operation by operation as formats/affine: nothing is fused, so device and CPU
// get the same bits.
#pragma once
#include "codes.cuh"

namespace ebb {

constexpr float kFp16Max = 65504.f;

// The fp16 next to |x| <= 65504 towards zero, as magnitude bits, and whether it is less than |x|.
struct Truncated {
  uint32_t bits;
  bool inexact;
};
__device__ __forceinline__ Truncated truncate_to_fp16(float x) {
  const uint32_t u = __float_as_uint(x) & 0x7fffffffu, exponent = u >> 23;
  if (exponent >= 113) return {(u - (112u << 23)) >> 13, (u & 0x1fffu) != 0};
  // Denormal in fp16: units of 2^-24.
  if (exponent < 103) return {0, u != 0};
  const uint32_t mantissa = (u & 0x7fffffu) | 0x800000u, shift = 126 - exponent;
  return {mantissa >> shift, (mantissa & ((1u << shift) - 1)) != 0};
}
// The greatest fp16 not above x; zero is always +0.
__device__ __forceinline__ uint32_t fp16_round_down(float x) {
  const Truncated t = truncate_to_fp16(x);
  if (!(__float_as_uint(x) >> 31)) return t.bits;
  const uint32_t magnitude = t.bits + t.inexact;
  return magnitude == 0 ? 0 : magnitude | 0x8000u;
}
// The least fp16 not below x >= 0.
__device__ __forceinline__ uint32_t fp16_round_up(float x) {
  const Truncated t = truncate_to_fp16(x);
  return t.bits + t.inexact;
}
// The fp16 nearest to |x| <= 65504, the even one of two; zero is always +0.
__device__ __forceinline__ uint32_t fp16_round_nearest(float x) {
  const uint32_t u = __float_as_uint(x) & 0x7fffffffu, exponent = u >> 23;
  uint32_t mantissa, shift;
  if (exponent >= 113) {
    mantissa = u - (112u << 23), shift = 13;
  } else {
    // Denormal in fp16: units of 2^-24. What is below half of one is none.
    mantissa = exponent < 102 ? 0 : (u & 0x7fffffu) | 0x800000u,
    shift = exponent < 102 ? 1 : 126 - exponent;
  }
  const uint32_t magnitude =
      (mantissa + (1u << (shift - 1)) - 1 + (mantissa >> shift & 1)) >> shift;
  return magnitude == 0 ? 0 : magnitude | (__float_as_uint(x) >> 16 & 0x8000u);
}
// A finite fp16, exactly.
__device__ __forceinline__ float fp16_value(uint32_t bits) {
  const float magnitude =
      __fmul_rn(__uint_as_float((bits & 0x7fffu) << 13), __uint_as_float((127u + 112u) << 23));
  return __uint_as_float(__float_as_uint(magnitude) | (bits & 0x8000u) << 16);
}
// The same in units of 2^-24.
__device__ __forceinline__ int64_t fp16_units(uint32_t bits) {
  const uint32_t exponent = bits >> 10 & 31;
  const int64_t fraction = bits & 1023;
  const int64_t magnitude = exponent == 0 ? fraction : (1024 + fraction) << (exponent - 1);
  return bits & 0x8000u ? -magnitude : magnitude;
}

__device__ __forceinline__ float steps_per_unit(float range, float levels) {
  return range > 0.f ? __fdiv_rn(levels, range) : 0.f;
}

// Rounds half up; x is not below zero. The code is the low byte: adding 2^23 leaves the integer
// part in the lowest bits, which costs a quarter of what a conversion does.
__device__ __forceinline__ uint32_t code_bits(float x, float zero, float scale, float levels) {
  const float steps = __fadd_rn(__fmul_rn(__fsub_rn(x, zero), scale), 0.5f);
  return __float_as_uint(__fadd_rz(fminf(steps, levels), 8388608.f));
}
__device__ __forceinline__ uint32_t code_of(float x, float zero, float scale, float levels) {
  return code_bits(x, zero, scale, levels) & 0xff;
}

}  // namespace ebb
