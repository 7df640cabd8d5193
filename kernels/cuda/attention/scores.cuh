// What some layers do with scores beside scaling them: soft caps, windows, chunks, sinks. Kernels
// that know these (ANY of their templates; `_any` of their names) are compiled apart, so that the
// others need neither the registers nor the instructions.
#pragma once
#include "../common/ptx.cuh"

namespace ebb {

struct ScoreParams {
  const bf16* sinks;   // [q_heads]: scores without a value, base e; null: none
  float cap;           // scores s become cap * tanh(s / cap): base 2; 0: they stay
  float cap_exponent;  // 2 over the cap, base e
  // Of prefill: tokens that a row sees, itself included. Units of decode begin where it does.
  uint32_t window;
  uint32_t chunk_mask;  // of a position's chunk, whose tokens are a power of two; 0: no chunks
};
static_assert(sizeof(ScoreParams) == 24);

// In the place of a maximum as long as no key has been seen: infinity less itself would be NaN.
constexpr float kNoScore = -1e30f;

// A capped score of one that is not, both base 2. tanh(x) = 1 - 2 / (1 + e^(2x)).
__device__ __forceinline__ float capped(const ScoreParams& p, float score) {
  return fmaf(-2.f * p.cap, reciprocal(1.f + ex2(score * p.cap_exponent)), p.cap);
}

// What a head's sink adds to a sum of exponentials relative to `most`, base 2.
__device__ __forceinline__ float exponential_of_sink(const ScoreParams& p, uint32_t head,
                                                     float most) {
  constexpr float kLog2E = 1.44269504088896f;
  if (p.sinks == nullptr) return 0.f;
  return ex2(fmaf(__bfloat162float(p.sinks[head]), kLog2E, -most));
}

// The first position that a row sees.
__device__ __forceinline__ uint32_t first_seen(const ScoreParams& p, uint32_t position) {
  return max(position + 1 - min(p.window, position + 1), position & p.chunk_mask);
}

}  // namespace ebb
