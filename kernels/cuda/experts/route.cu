// Routes and sorts: a step of many rows by two kernels, one of few by one.
#include "route.cuh"
#include "sort.cuh"

namespace ebb {

struct RouteSortParams {
  RouteParams route;
  SortParams sort;
};
static_assert(sizeof(RouteSortParams) == 136);

constexpr uint32_t kFewExperts = 256;  // FEW_EXPERTS of the host

}  // namespace ebb

// Grid: rows / 4. A warp a row.
EBB_KERNEL(experts_route, ebb::RouteParams, ebb::kRouteWarps * 32, 4) {
  __shared__ float scores[ebb::kRouteWarps][ebb::kExpertsMax];
  __shared__ float chosen[ebb::kRouteWarps][ebb::kPerTokenMax];
  const uint32_t warp = threadIdx.x / 32, row = blockIdx.x * ebb::kRouteWarps + warp;
  if (row >= p.rows) return;
  ebb::route(p, row, scores[warp], chosen[warp]);
}

// Grid: 1.
EBB_KERNEL(experts_sort, ebb::SortParams, ebb::kSortThreads, 1) {
  __shared__ uint32_t next[ebb::kSortThreads], of_warps[ebb::kSortThreads / 32];
  ebb::sort(p, next, of_warps);
}

// Grid: 1. Up to kFewExperts experts; a warp has every 32nd row.
EBB_KERNEL(experts_route_sort, ebb::RouteSortParams, ebb::kSortThreads, 1) {
  __shared__ float scores[ebb::kSortThreads / 32][ebb::kFewExperts];
  __shared__ float chosen[ebb::kSortThreads / 32][ebb::kPerTokenMax];
  __shared__ uint32_t next[ebb::kSortThreads], of_warps[ebb::kSortThreads / 32];
  const uint32_t warp = threadIdx.x / 32;
  for (uint32_t row = warp; row < p.route.rows; row += ebb::kSortThreads / 32) {
    ebb::route(p.route, row, scores[warp], chosen[warp]);
    __syncwarp();
  }
  __syncthreads();
  ebb::sort(p.sort, next, of_warps);
}
