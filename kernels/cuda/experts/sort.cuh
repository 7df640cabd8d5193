// Sorts rows by the experts that they go to, and cuts each expert's rows into tiles, which products
// take as they find them: no size of a launch depends on what was chosen.
//
// Where a row stands among its expert's is left to who comes first: no result depends on it.
#pragma once
#include "../common/kernel.cuh"
#include "../common/ptx.cuh"

namespace ebb {

struct SortParams {
  const uint32_t* chosen;  // [rows][per_token]
  uint32_t* places;        // [rows][per_token]: of each choice, its place in the sorted order
  uint32_t* sorted;        // of each place, its row
  uint4* tiles;            // [0].x: how many there are; then expert, first place and count of each
  uint32_t choices;
  uint32_t per_token;
  uint32_t experts;    // at most 1024
  uint32_t tile_rows;  // rows of a tile at most
};
static_assert(sizeof(SortParams) == 48);

constexpr uint32_t kSortThreads = 1024;

// The sum of `v` over the threads before this one, and over all in `total`.
__device__ __forceinline__ uint32_t sum_before(uint32_t v, uint32_t* of_warps, uint32_t& total) {
  const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  uint32_t sum = v;
#pragma unroll
  for (uint32_t k = 1; k < 32; k <<= 1) {
    const uint32_t before = __shfl_up_sync(~0u, sum, k);
    if (lane >= k) sum += before;
  }
  if (lane == 31) of_warps[warp] = sum;
  __syncthreads();
  uint32_t before = 0;
  total = 0;
#pragma unroll 4
  for (uint32_t w = 0; w < kSortThreads / 32; w++) {
    if (w < warp) before += of_warps[w];
    total += of_warps[w];
  }
  __syncthreads();
  return before + sum - v;
}

// For a CTA of kSortThreads.
__device__ __forceinline__ void sort(const SortParams& p, uint32_t* next, uint32_t* of_warps) {
  const uint32_t thread = threadIdx.x;
  next[thread] = 0;
  __syncthreads();
  for (uint32_t i = thread; i < p.choices; i += kSortThreads) atomicAdd(&next[p.chosen[i]], 1);
  __syncthreads();
  // A thread an expert.
  const uint32_t count = next[thread], tiles = (count + p.tile_rows - 1) / p.tile_rows;
  uint32_t total;
  const uint32_t first = sum_before(count, of_warps, total);
  const uint32_t first_tile = sum_before(tiles, of_warps, total);
  next[thread] = first;
  if (thread == 0) p.tiles[0] = make_uint4(total, 0, 0, 0);
  for (uint32_t i = 0; i < tiles; i++) {
    const uint32_t at = i * p.tile_rows;
    p.tiles[1 + first_tile + i] = make_uint4(thread, first + at, min(count - at, p.tile_rows), 0);
  }
  __syncthreads();
  for (uint32_t i = thread; i < p.choices; i += kSortThreads) {
    const uint32_t place = atomicAdd(&next[p.chosen[i]], 1);
    p.places[i] = place;
    p.sorted[place] = i / p.per_token;
  }
}

}  // namespace ebb
