// The norm in front of a layer of experts and its router's product, of few rows:
// x = norm(residual + delta), scores = x router^T.
//
// Each CTA norms the rows for itself, and has a warp for each of eight experts. The residual stream
// stays as it is, as other CTAs still read it: whoever adds what the experts put out adds `delta`
// as well (combine.cu).
#include "../common/kernel.cuh"
#include "../ops/norm_form.cuh"

namespace ebb {

struct NormedRouterParams {
  const bf16* delta;       // [rows][hidden], or null
  const bf16* delta_bias;  // [hidden], or null: added to delta
  const float* residual;   // [rows][hidden]
  const bf16* weight;      // [hidden]
  const bf16* bias;        // [hidden], or null
  bf16* normed;            // [rows][hidden]
  const bf16* router;      // [experts][hidden]
  float* scores;           // [rows][experts]
  NormForm form;
  uint32_t rows;
  uint32_t hidden;  // a multiple of 8
  uint32_t experts;
  uint32_t reserved;
};
static_assert(sizeof(NormedRouterParams) == 96);

template <int Vectors>
__device__ __forceinline__ void normed_router(const NormedRouterParams& p) {
  // Of an expert's weights, 256 values each; those that are under way before the wait.
  constexpr int kPieces = 8 * Vectors, kHeld = kPieces < 16 ? kPieces : 16;
  __shared__ uint4 shared_row[Vectors * kNormThreads];
  __shared__ float scratch[kNormThreads / 32];
  bf16* const normed = reinterpret_cast<bf16*>(shared_row);  // of a row
  let_next_start();
  const uint32_t lane = threadIdx.x % 32, expert = blockIdx.x * 8 + threadIdx.x / 32;
  const bf16* const router =
      p.router + static_cast<uint64_t>(min(expert, p.experts - 1)) * p.hidden;
  const HeldWeights<Vectors> of_norm(p.weight, p.hidden);
  uint4 of_router[kHeld];
  auto piece_of = [&](int piece) {
    const uint32_t i = piece * 256 + lane * 8;
    return i < p.hidden ? __ldg(reinterpret_cast<const uint4*>(router + i))
                        : make_uint4(0, 0, 0, 0);
  };
#pragma unroll
  for (int piece = 0; piece < kHeld; piece++) of_router[piece] = piece_of(piece);
  wait_for_previous();
#pragma unroll 1
  for (uint32_t row = 0; row < p.rows; row++) {
    const uint64_t first = static_cast<uint64_t>(row) * p.hidden;
    float x[Vectors][8];
    load_stream(p.form, p.hidden, p.residual + first, p.delta ? p.delta + first : nullptr,
                p.delta_bias, x, [](uint32_t, const float (&)[8]) {});
    norm_row(p.form, p.hidden, of_norm, p.bias, x, scratch,
             [&](uint32_t i, const float (&eight)[8]) {
               store8(normed + i, eight);
               if (blockIdx.x == 0) store8(p.normed + first + i, eight);
             });
    __syncthreads();
    float sum = 0.f;
#pragma unroll
    for (int piece = 0; piece < kPieces; piece++) {
      const uint32_t i = piece * 256 + lane * 8;
      if (i >= p.hidden) break;
      float w[8], of_row[8];
      unpack8(piece < kHeld ? of_router[piece % kHeld] : piece_of(piece), w);
      load8(normed + i, of_row);
#pragma unroll
      for (int k = 0; k < 8; k++) sum = fmaf(of_row[k], w[k], sum);
    }
    sum = warp_sum(sum);
    if (lane == 0 && expert < p.experts)
      p.scores[static_cast<uint64_t>(row) * p.experts + expert] = sum;
    __syncthreads();
  }
}

}  // namespace ebb

// Grid: experts / 8. The suffix is the largest hidden size.
EBB_KERNEL_EARLY(normed_router_2048, ebb::NormedRouterParams, 256, 1) { ebb::normed_router<1>(p); }
EBB_KERNEL_EARLY(normed_router_4096, ebb::NormedRouterParams, 256, 1) { ebb::normed_router<2>(p); }
EBB_KERNEL_EARLY(normed_router_8192, ebb::NormedRouterParams, 256, 1) { ebb::normed_router<4>(p); }
