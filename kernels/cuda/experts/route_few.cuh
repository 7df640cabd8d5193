// Routes and sorts few rows, with a thread for each expert of each row: what becomes of a row waits
// for one score, not for those of eight experts in turn, and nothing stands in code eight times,
// which takes longer to fetch than to run. Bits are those of route.cuh: sums have its order.
#pragma once
#include "route.cuh"
#include "sort.cuh"

namespace ebb {

struct RouteSortParams {
  RouteParams route;
  SortParams sort;
};
static_assert(sizeof(RouteSortParams) == 144);

// One for each expert of each row, experts rounded up to warps, and for each choice. (Of 1024, four
// rows of 128 experts take 3 us more than by a warp a row.)
constexpr uint32_t kRouteFewThreads = 256;

struct RouteFewShared {
  uint4 keys[kRouteFewThreads / 4];
  float scores[kRouteFewThreads];
  float tops[kRouteFewThreads / 32];
  float of_chosen[kFewChoices];
  uint32_t chosen[kFewChoices];
  uint32_t begins[kFewChoices / 32];
};

// A row has as many threads as there are experts, rounded up to warps. Neither groups nor the
// sparse mixer.
__device__ __forceinline__ void route_few(const RouteParams& p, RouteFewShared& shared) {
  float* const scores = shared.scores;
  float* const of_chosen = shared.of_chosen;
  uint32_t* const keys = reinterpret_cast<uint32_t*>(shared.keys);
  const uint32_t width = (p.experts + 31) / 32 * 32;
  const uint32_t thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
  const uint32_t row = thread / width, expert = thread % width;
  const bool is_row = row < p.rows, is_expert = is_row && expert < p.experts;
  float score = is_expert ? p.products[static_cast<uint64_t>(row) * p.experts + expert] : 0.f;
  if (is_expert) score = scored_product(p, expert, score);
  // Threads beyond the rows have nothing to look at.
  const uint32_t experts = is_row ? width : 0, first = row * width;
  const bool by_products = chooses_by_products(p);
  float of_all = 0.f;
  if (!by_products) {
    if (p.scores == 0) {
      const float top = warp_max(is_expert ? score : -INFINITY);
      if (lane == 0) shared.tops[warp] = top;
      __syncthreads();
      float of_row = -INFINITY;
#pragma unroll 1
      for (uint32_t e = 0; e < experts; e += 32)
        of_row = fmaxf(of_row, shared.tops[(first + e) / 32]);
      score = expf(score - of_row);
    } else {
      score = sigmoid(score);
    }
  }
  scores[thread] = is_expert ? score : 0.f;
  __syncthreads();
  if (!by_products && p.scores == 0) {
    // A lane has every 32nd expert, and lanes are added up.
#pragma unroll 1
    for (uint32_t e = 0; e < experts; e += 32) of_all += scores[first + e + lane];
    of_all = warp_sum(of_all);
    if (p.correction) {
      score /= of_all;
      of_all = 1.f;
    }
  }
  const uint32_t key = is_expert ? key_of(corrected(p, expert, score)) : 0;
  keys[thread] = key;
  __syncthreads();
  // As many are chosen before an expert as have greater keys, or the same and a lower number.
  uint32_t before = 0;
#pragma unroll 4
  for (uint32_t i = 0; i < experts / 4; i++) {
    const uint4 four = shared.keys[first / 4 + i];
    const uint32_t other[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
    for (uint32_t k = 0; k < 4; k++)
      before += other[k] > key || (other[k] == key && i * 4 + k < expert);
  }
  if (is_expert && before < p.per_token) {
    shared.chosen[row * p.per_token + before] = expert;
    of_chosen[row * p.per_token + before] = by_products ? sigmoid(score) : score;
  }
  __syncthreads();
  if (!is_row || expert >= p.per_token) return;
  float sum = 0.f;
#pragma unroll 1
  for (uint32_t i = 0; i < p.per_token; i++) sum += of_chosen[row * p.per_token + i];
  const uint32_t at = row * p.per_token + expert;
  write_weight(p, row, expert, shared.chosen[at], of_chosen[at], sum, of_all);
}

__device__ __forceinline__ void route_sort_few(const RouteSortParams& p, RouteFewShared& shared) {
  if (threadIdx.x < kFewChoices / 32) shared.begins[threadIdx.x] = 0;
  route_few(p.route, shared);
  __syncthreads();
  sort_few(p.sort, shared.chosen, shared.begins);
}

}  // namespace ebb
