// Which experts a row goes to: from a router's products to a choice and its weights, as
// src/model/routing.rs has it, operation by operation in the same order of experts.
#pragma once
#include "../common/activation.cuh"
#include "../common/kernel.cuh"
#include "../common/ordered.cuh"
#include "../common/ptx.cuh"
#include "../common/reduce.cuh"

namespace ebb {

struct RouteParams {
  const float* products;   // [rows][experts]
  const bf16* bias;        // [experts] of the products, or null
  const bf16* correction;  // [2][experts] for the choice alone: rounded, and what is left; or null
  const bf16* scales;      // [experts] of the weights, or null
  uint32_t* chosen;        // [rows][per_token]: experts, the best first; of few rows not written
  float* weights;          // [rows][per_token]
  uint32_t rows;
  uint32_t experts;    // at most 1024
  uint32_t per_token;  // at most 32
  uint32_t scores;     // what products become: 0 softmax, 1 sigmoid, 2 sparse mixer
  uint32_t groups;     // 0: all experts are chosen from
  uint32_t groups_chosen;
  uint32_t renormalised;
  float scale;
  float jitter;
  float multiplier;  // of the products
  float cap;         // products x become cap * tanh(x / cap); 0: they stay
  uint32_t reserved;
};
static_assert(sizeof(RouteParams) == 96);

constexpr uint32_t kRouteWarps = 4, kExpertsMax = 1024, kPerTokenMax = 32, kNobody = ~0u;
// Added to a sum of sigmoids that weights are divided by.
constexpr float kLeastSum = 1e-20f;

// The first of the greatest of `count` values that `out`, a bit for every 32nd of this lane's, does
// not have; there must be one.
template <class VALUE>
__device__ __forceinline__ uint32_t best_of(uint32_t count, uint32_t out, VALUE value) {
  uint32_t best = 0, index = kNobody;  // of this lane
  for (uint32_t i = threadIdx.x % 32, bit = 0; i < count; i += 32, bit++) {
    const uint32_t v = ordered(value(i));
    if (!(out >> bit & 1) && (index == kNobody || v > best)) best = v, index = i;
  }
  const uint32_t most = __reduce_max_sync(~0u, best);
  return __reduce_min_sync(~0u, best == most ? index : kNobody);
}

// Strikes an index from this lane's, if it is one of them.
__device__ __forceinline__ void strike(uint32_t& out, uint32_t index) {
  if (index % 32 == threadIdx.x % 32) out |= 1u << index / 32;
}

// For a warp. `chosen` [per_token] is the row's; `scores` [experts] and `chosen_scores` [per_token]
// are the warp's.
__device__ __forceinline__ void route(const RouteParams& p, uint32_t row, uint32_t* chosen,
                                      float* scores, float* chosen_scores) {
  const uint32_t lane = threadIdx.x % 32;
  const float* const products = p.products + static_cast<uint64_t>(row) * p.experts;
  float top = -INFINITY;
  for (uint32_t e = lane; e < p.experts; e += 32) {
    const float bias = p.bias ? __bfloat162float(p.bias[e]) : 0.f;
    scores[e] = products[e] * p.multiplier + bias;
    if (p.cap != 0.f) scores[e] = p.cap * tanhf(scores[e] / p.cap);
    top = fmaxf(top, scores[e]);
  }
  top = warp_max(top);
  float sum = 0.f;
  // Sigmoids of great products are all 1: where nothing is added, products choose.
  const bool by_products = p.scores == 1 && !p.correction && p.groups == 0;
  if (p.scores != 2 && !by_products) {
    for (uint32_t e = lane; e < p.experts; e += 32) {
      scores[e] = p.scores == 0 ? expf(scores[e] - top) : sigmoid(scores[e]);
      sum += scores[e];
    }
    sum = warp_sum(sum);
  }
  if (p.scores == 0 && p.correction) {
    // It is one of shares.
    for (uint32_t e = lane; e < p.experts; e += 32) scores[e] /= sum;
    sum = 1.f;
  }
  __syncwarp();
  auto of_choice = [&](uint32_t e) {
    if (!p.correction) return scores[e];
    return scores[e] +
           (__bfloat162float(p.correction[e]) + __bfloat162float(p.correction[p.experts + e]));
  };
  uint32_t out = 0;
  if (p.groups > 0) {
    const uint32_t size = p.experts / p.groups;
    auto of_group = [&](uint32_t group) {
      float first = -INFINITY, second = -INFINITY;
      for (uint32_t e = group * size; e < (group + 1) * size; e++) {
        const float v = of_choice(e);
        if (v > first)
          second = first, first = v;
        else if (v > second)
          second = v;
      }
      return first + second;
    };
    uint32_t taken = 0;
    for (uint32_t i = 0; i < p.groups_chosen; i++)
      strike(taken, best_of(p.groups, taken, of_group));
    for (uint32_t e = lane, bit = 0; e - lane < p.experts; e += 32, bit++) {
      const uint32_t group = e < p.experts ? e / size : 0;
      const uint32_t of_lane = __shfl_sync(~0u, taken, group % 32);
      if (!(of_lane >> group / 32 & 1)) out |= 1u << bit;
    }
  }
  float* const weights = p.weights + static_cast<uint64_t>(row) * p.per_token;
  float of_chosen = 0.f;
  uint32_t own = 0;  // the expert whose weight this lane writes
  for (uint32_t i = 0; i < p.per_token; i++) {
    const uint32_t best = best_of(p.experts, out, of_choice);
    float weight = scores[best];
    if (p.scores == 2) {
      const float score = weight;
      float near = 0.f;
      for (uint32_t e = lane, bit = 0; e < p.experts; e += 32, bit++) {
        const bool is_far = (score - scores[e]) / fmaxf(fabsf(scores[e]), score) > 2.f * p.jitter;
        if (!(out >> bit & 1) && !is_far) near += expf(scores[e] - score);
      }
      weight = 1.f / warp_sum(near);
    }
    if (by_products) weight = sigmoid(weight);
    strike(out, best);
    of_chosen += weight;
    if (lane == i) own = best;
    if (lane == 0) chosen[i] = best, chosen_scores[i] = weight;
  }
  __syncwarp();
  if (lane >= p.per_token) return;
  float weight = chosen_scores[lane];
  if (p.scores == 0)
    weight /= p.renormalised ? of_chosen : sum;
  else if (p.scores == 1 && p.renormalised)
    weight /= of_chosen + kLeastSum;
  weight *= p.scale;
  weights[lane] = p.scales ? weight * __bfloat162float(p.scales[own]) : weight;
}

}  // namespace ebb
