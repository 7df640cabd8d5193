// Routes and sorts: a step of many rows by two kernels, one of few by one.
#include "route_few.cuh"

namespace ebb {

constexpr uint32_t kFewExperts = 256;  // FEW_EXPERTS of the host

// For a CTA that has a warp for each of up to ROWS rows, and a thread for each choice.
template <int ROWS>
__device__ __forceinline__ void route_sort(const RouteSortParams& p) {
  __shared__ float scores[ROWS][kFewExperts];
  __shared__ uint32_t chosen[kFewChoices], begins[kFewChoices / 32];
  const uint32_t row = threadIdx.x / 32;
  if (threadIdx.x < kFewChoices / 32) begins[threadIdx.x] = 0;
  if (row < p.route.rows)
    route<kFewExperts / 32>(p.route, row, chosen + row * p.route.per_token, scores[row]);
  __syncthreads();
  sort_few(p.sort, chosen, begins);
}

// For a CTA that has a warp for each of its rows.
template <int EACH>
__device__ __forceinline__ void route_rows(const RouteParams& p,
                                           float (&scores)[kRouteWarps][32 * EACH]) {
  const uint32_t warp = threadIdx.x / 32, row = blockIdx.x * kRouteWarps + warp;
  if (row >= p.rows) return;
  route<EACH>(p, row, p.chosen + static_cast<uint64_t>(row) * p.per_token, scores[warp]);
}

}  // namespace ebb

// Grid: rows / 4. A warp a row. The number is the most experts.
EBB_KERNEL(experts_route_256, ebb::RouteParams, ebb::kRouteWarps * 32, 4) {
  __shared__ float scores[ebb::kRouteWarps][256];
  ebb::route_rows<8>(p, scores);
}
EBB_KERNEL(experts_route_1024, ebb::RouteParams, ebb::kRouteWarps * 32, 2) {
  __shared__ float scores[ebb::kRouteWarps][1024];
  ebb::route_rows<32>(p, scores);
}

// Grid: 1.
EBB_KERNEL(experts_sort, ebb::SortParams, ebb::kSortThreads, 1) {
  __shared__ uint32_t next[ebb::kSortThreads], of_warps[ebb::kSortThreads / 32];
  ebb::sort(p, next, of_warps);
}

// Grid: 1. The number is that of the rows.
EBB_KERNEL(experts_route_sort_8, ebb::RouteSortParams, 256, 1) { ebb::route_sort<8>(p); }
EBB_KERNEL(experts_route_sort_32, ebb::RouteSortParams, 1024, 1) { ebb::route_sort<32>(p); }

// Grid: 1.
EBB_KERNEL(experts_route_few, ebb::RouteSortParams, ebb::kRouteFewThreads, 1) {
  __shared__ ebb::RouteFewShared shared;
  ebb::route_sort_few(p, shared);
}
