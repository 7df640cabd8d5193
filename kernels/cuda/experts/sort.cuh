// Sorts rows by the experts that they go to, and cuts each expert's rows into tiles, which products
// take as they find them: no size of a launch depends on what was chosen.
//
// Where a row stands among its expert's is left to who comes first: no result depends on it.
#pragma once
#include "../common/kernel.cuh"
#include "../common/ptx.cuh"

namespace ebb {

struct SortParams {
  const uint32_t* chosen;  // [rows][per_token]; of few choices not read
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

constexpr uint32_t kFewChoices = 256;

// The same of up to kFewChoices, by comparing each with all: `chosen` is in shared memory and
// `begins`, a bit for each place, zero. For a CTA of as many threads as there are choices or more.
__device__ __forceinline__ void sort_few(const SortParams& p, const uint32_t* chosen,
                                         uint32_t* begins) {
  const uint32_t i = threadIdx.x;
  const bool is_choice = i < p.choices;
  const uint32_t expert = is_choice ? chosen[i] : 0;
  // Of the choices: those in front of this one, those of them with its expert, all with its expert.
  uint32_t place = 0, earlier = 0, count = 0;
  if (is_choice) {
#pragma unroll 8
    for (uint32_t j = 0; j < p.choices; j++) {
      const uint32_t other = chosen[j];
      const bool is_same = other == expert, is_earlier = is_same && j < i;
      place += other < expert || is_earlier;
      earlier += is_earlier;
      count += is_same;
    }
    p.places[i] = place;
    p.sorted[place] = i / p.per_token;
  }
  const bool is_first = is_choice && earlier % p.tile_rows == 0;
  if (is_first) atomicOr(&begins[place / 32], 1u << place % 32);
  __syncthreads();
  // A tile's number is how many begin in front of it.
  uint32_t before = 0, total = 0;
#pragma unroll
  for (uint32_t w = 0; w < kFewChoices / 32; w++) {
    const uint32_t bits = begins[w];
    total += __popc(bits);
    if (w < place / 32) before += __popc(bits);
    if (w == place / 32) before += __popc(bits & ((1u << place % 32) - 1));
  }
  if (is_first)
    p.tiles[1 + before] = make_uint4(expert, place, min(count - earlier, p.tile_rows), 0);
  if (i == 0) p.tiles[0] = make_uint4(total, 0, 0, 0);
}

}  // namespace ebb
