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

constexpr uint32_t kRouteWarps = 4, kNobody = ~0u;
// Added to a sum of sigmoids that weights are divided by.
constexpr float kLeastSum = 1e-20f;

// The index of the greatest key of a warp, the first of several: a lane's `keys` are those of lane,
// lane + 32 and so on. 0 is no key; there must be one.
template <int COUNT>
__device__ __forceinline__ uint32_t best_of(const uint32_t (&keys)[COUNT]) {
  uint32_t best = 0, index = kNobody;  // of this lane
#pragma unroll
  for (int k = 0; k < COUNT; k++) {
    if (keys[k] > best) best = keys[k], index = k * 32 + threadIdx.x % 32;
  }
  const uint32_t most = __reduce_max_sync(~0u, best);
  return __reduce_min_sync(~0u, best == most ? index : kNobody);
}

// The value of an index, in every lane.
template <class T, int COUNT>
__device__ __forceinline__ T value_of(const T (&values)[COUNT], uint32_t index) {
  T own = values[0];
#pragma unroll
  for (int k = 1; k < COUNT; k++) {
    if (index == k * 32 + threadIdx.x % 32) own = values[k];
  }
  return __shfl_sync(~0u, own, index % 32);
}

template <int COUNT>
__device__ __forceinline__ void strike(uint32_t (&keys)[COUNT], uint32_t index) {
#pragma unroll
  for (int k = 0; k < COUNT; k++) {
    if (index == k * 32 + threadIdx.x % 32) keys[k] = 0;
  }
}

// Greater for greater values; never 0.
__device__ __forceinline__ uint32_t key_of(float value) { return max(ordered(value), 1u); }

// What an expert's product is scored by.
__device__ __forceinline__ float scored_product(const RouteParams& p, uint32_t expert,
                                                float product) {
  const float bias = p.bias ? __bfloat162float(p.bias[expert]) : 0.f;
  const float x = product * p.multiplier + bias;
  return p.cap != 0.f ? p.cap * tanhf(x / p.cap) : x;
}

// Sigmoids of great products are all 1: where nothing is added, products choose.
__device__ __forceinline__ bool chooses_by_products(const RouteParams& p) {
  return p.scores == 1 && !p.correction && p.groups == 0;
}

// What the choice of an expert is made by.
__device__ __forceinline__ float corrected(const RouteParams& p, uint32_t expert, float score) {
  if (!p.correction) return score;
  return score + (__bfloat162float(p.correction[expert]) +
                  __bfloat162float(p.correction[p.experts + expert]));
}

// Writes the weight of a row's choice: of its score, of the sum of what is chosen, and of all.
__device__ __forceinline__ void write_weight(const RouteParams& p, uint32_t row, uint32_t choice,
                                             uint32_t expert, float score, float of_chosen,
                                             float of_all) {
  float weight = score;
  if (p.scores == 0)
    weight /= p.renormalised ? of_chosen : of_all;
  else if (p.scores == 1 && p.renormalised)
    weight /= of_chosen + kLeastSum;
  weight *= p.scale;
  p.weights[static_cast<uint64_t>(row) * p.per_token + choice] =
      p.scales ? weight * __bfloat162float(p.scales[expert]) : weight;
}

// For a warp, and up to 32 EACH experts, of which a lane has every 32nd. `chosen` [per_token] is
// the row's; `scores` [experts] is the warp's, for models with groups.
template <int EACH>
__device__ __forceinline__ void route(const RouteParams& p, uint32_t row, uint32_t* chosen,
                                      float* scores) {
  const uint32_t lane = threadIdx.x % 32;
  const float* const products = p.products + static_cast<uint64_t>(row) * p.experts;
  float score[EACH];
#pragma unroll
  for (int k = 0; k < EACH; k++) {
    const uint32_t e = k * 32 + lane;
    score[k] = e < p.experts ? products[e] : 0.f;
  }
  float top = -INFINITY;
#pragma unroll
  for (int k = 0; k < EACH; k++) {
    const uint32_t e = k * 32 + lane;
    if (e >= p.experts) continue;
    score[k] = scored_product(p, e, score[k]);
    top = fmaxf(top, score[k]);
  }
  top = warp_max(top);
  float sum = 0.f;
  const bool by_products = chooses_by_products(p);
  if (p.scores != 2 && !by_products) {
#pragma unroll
    for (int k = 0; k < EACH; k++) {
      if (k * 32 + lane >= p.experts) continue;
      score[k] = p.scores == 0 ? expf(score[k] - top) : sigmoid(score[k]);
      sum += score[k];
    }
    sum = warp_sum(sum);
  }
  if (p.scores == 0 && p.correction) {
    // It is one of shares.
#pragma unroll
    for (int k = 0; k < EACH; k++) score[k] /= sum;
    sum = 1.f;
  }
  uint32_t keys[EACH];
#pragma unroll
  for (int k = 0; k < EACH; k++) {
    const uint32_t e = k * 32 + lane;
    keys[k] = 0;
    if (e >= p.experts) continue;
    const float choice = corrected(p, e, score[k]);
    keys[k] = key_of(choice);
    if (p.groups > 0) scores[e] = choice;
  }
  if (p.groups > 0) {
    __syncwarp();
    const uint32_t size = p.experts / p.groups;
    uint32_t groups[EACH] = {}, taken = 0;
    auto of_group = [&](uint32_t group) {
      float first = -INFINITY, second = -INFINITY;
#pragma unroll 1
      for (uint32_t e = group * size; e < (group + 1) * size; e++) {
        const float v = scores[e];
        if (v > first)
          second = first, first = v;
        else if (v > second)
          second = v;
      }
      return key_of(first + second);
    };
#pragma unroll
    for (int k = 0; k < EACH; k++)
      if (k * 32 + lane < p.groups) groups[k] = of_group(k * 32 + lane);
#pragma unroll 1
    for (uint32_t i = 0; i < p.groups_chosen; i++) {
      const uint32_t group = best_of(groups);
      strike(groups, group);
      if (group % 32 == lane) taken |= 1u << group / 32;
    }
#pragma unroll
    for (int k = 0; k < EACH; k++) {
      const uint32_t e = k * 32 + lane, group = e < p.experts ? e / size : 0;
      const uint32_t of_lane = __shfl_sync(~0u, taken, group % 32);
      if (!(of_lane >> group / 32 & 1)) keys[k] = 0;
    }
  }
  float of_chosen = 0.f, weight = 0.f;
  uint32_t own = 0;  // the expert whose weight this lane writes
#pragma unroll 1
  for (uint32_t i = 0; i < p.per_token; i++) {
    const uint32_t best = best_of(keys);
    float of_best = value_of(score, best);
    if (p.scores == 2) {
      float near = 0.f;
#pragma unroll
      for (int k = 0; k < EACH; k++) {
        const bool is_far = (of_best - score[k]) / fmaxf(fabsf(score[k]), of_best) > 2.f * p.jitter;
        if (keys[k] != 0 && !is_far) near += expf(score[k] - of_best);
      }
      of_best = 1.f / warp_sum(near);
    }
    if (by_products) of_best = sigmoid(of_best);
    strike(keys, best);
    of_chosen += of_best;
    if (lane == i) own = best, weight = of_best;
  }
  if (lane >= p.per_token) return;
  chosen[lane] = own;
  write_weight(p, row, lane, own, weight, of_chosen, sum);
}

}  // namespace ebb
