// Routes and sorts: a step of many rows by two kernels, one of few by one.
#include "route.cuh"
#include "sort.cuh"

namespace ebb {

struct RouteSortParams {
  RouteParams route;
  SortParams sort;
};
static_assert(sizeof(RouteSortParams) == 136);

// What one CTA routes and sorts: FEW_ROWS and FEW_EXPERTS of the host, and kFewChoices.
constexpr uint32_t kFewRows = 32, kFewExperts = 256;

}  // namespace ebb

// Grid: rows / 4. A warp a row.
EBB_KERNEL(experts_route, ebb::RouteParams, ebb::kRouteWarps * 32, 4) {
  __shared__ float scores[ebb::kRouteWarps][ebb::kExpertsMax];
  __shared__ float chosen[ebb::kRouteWarps][ebb::kPerTokenMax];
  const uint32_t warp = threadIdx.x / 32, row = blockIdx.x * ebb::kRouteWarps + warp;
  if (row >= p.rows) return;
  ebb::route(p, row, p.chosen + static_cast<uint64_t>(row) * p.per_token, scores[warp],
             chosen[warp]);
}

// Grid: 1.
EBB_KERNEL(experts_sort, ebb::SortParams, ebb::kSortThreads, 1) {
  __shared__ uint32_t next[ebb::kSortThreads], of_warps[ebb::kSortThreads / 32];
  ebb::sort(p, next, of_warps);
}

// Grid: 1. A warp a row, and a thread a choice.
EBB_KERNEL(experts_route_sort, ebb::RouteSortParams, ebb::kFewRows * 32, 1) {
  __shared__ float scores[ebb::kFewRows][ebb::kFewExperts];
  __shared__ float chosen_scores[ebb::kFewRows][ebb::kPerTokenMax];
  __shared__ uint32_t chosen[ebb::kFewChoices], begins[ebb::kFewChoices / 32];
  const uint32_t row = threadIdx.x / 32;
  if (threadIdx.x < ebb::kFewChoices / 32) begins[threadIdx.x] = 0;
  if (row < p.route.rows)
    ebb::route(p.route, row, chosen + row * p.route.per_token, scores[row], chosen_scores[row]);
  __syncthreads();
  ebb::sort_few(p.sort, chosen, begins);
}
