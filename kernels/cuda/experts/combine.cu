// What a row's experts have put out, weighted and added up in order of choice, behind what the
// shared expert has put out; and what experts read whose inputs are weighted.
#include "../common/kernel.cuh"
#include "../ops/norm_form.cuh"

namespace ebb {

struct CombineParams {
  const bf16* y;           // [places][hidden]
  const uint32_t* places;  // [rows][per_token]
  const float* weights;    // [rows][per_token], or null: all are 1
  const bf16* x;           // [rows][hidden], what the score is a product of
  const bf16* score;       // [hidden], or null: the shared expert is not scored
  bf16* out;               // [rows][hidden]: what the shared expert has put out, if it is added to
  uint32_t hidden;         // a multiple of 8
  uint32_t per_token;
  uint32_t has_shared;
  uint32_t reserved;
};
static_assert(sizeof(CombineParams) == 64);

struct WeighParams {
  const bf16* x;           // [rows][hidden]
  const uint32_t* places;  // [rows][per_token]
  const float* weights;    // [rows][per_token]
  bf16* out;               // [places][hidden]
  uint32_t hidden;         // a multiple of 8
  uint32_t per_token;
};
static_assert(sizeof(WeighParams) == 40);

// The sum joined to the norm behind it, as ops/norm.cu has it: residual += what was to be added
// before, residual += sum, normed = norm(residual).
struct CombineNormParams {
  CombineParams combine;   // `out` is only read
  const bf16* delta;       // [rows][hidden]: what is still to be added, or null
  const bf16* delta_bias;  // [hidden], or null: added to delta
  float* residual;         // [rows][hidden]
  const bf16* weight;      // [hidden]
  const bf16* bias;        // [hidden], or null
  bf16* normed;            // [rows][hidden]
  NormForm form;
};
static_assert(sizeof(CombineNormParams) == 128);

constexpr int kCombineThreads = kNormThreads;

// What the shared expert has put out is multiplied by.
__device__ __forceinline__ float share_of(const CombineParams& p, uint64_t row, float* scratch) {
  if (!p.score) return 1.f;
  float sum = 0.f;
  for (uint32_t i = threadIdx.x * 8; i < p.hidden; i += kCombineThreads * 8) {
    float x[8], w[8];
    load8(p.x + row * p.hidden + i, x);
    load8(p.score + i, w);
#pragma unroll
    for (int k = 0; k < 8; k++) sum += x[k] * w[k];
  }
  return 1.f / (1.f + __expf(-cta_sum<kCombineThreads / 32>(sum, scratch)));
}

// Eight values of a row, from `i` on. Loads of some choices are under way together.
__device__ __forceinline__ void combine8(const CombineParams& p, uint64_t row, uint32_t i,
                                         float share, float (&sum)[8]) {
#pragma unroll
  for (int k = 0; k < 8; k++) sum[k] = 0.f;
  if (p.has_shared) {
    load8(p.out + row * p.hidden + i, sum);
#pragma unroll
    for (int k = 0; k < 8; k++) sum[k] *= share;
  }
  constexpr uint32_t kAtOnce = 8;
  for (uint32_t first = 0; first < p.per_token; first += kAtOnce) {
    const uint64_t of_row = row * p.per_token + first;
    uint32_t place[kAtOnce];
    float weight[kAtOnce];
    uint4 y[kAtOnce];
#pragma unroll
    for (uint32_t c = 0; c < kAtOnce; c++) {
      const bool is = first + c < p.per_token;
      place[c] = p.places[of_row + (is ? c : 0)];
      weight[c] = is ? p.weights ? p.weights[of_row + c] : 1.f : 0.f;
    }
#pragma unroll
    for (uint32_t c = 0; c < kAtOnce; c++)
      y[c] = *reinterpret_cast<const uint4*>(p.y + static_cast<uint64_t>(place[c]) * p.hidden + i);
#pragma unroll
    for (uint32_t c = 0; c < kAtOnce; c++) {
      if (first + c >= p.per_token) break;
      float values[8];
      unpack8(y[c], values);
#pragma unroll
      for (int k = 0; k < 8; k++) sum[k] += weight[c] * values[k];
    }
  }
}

// One CTA a row, as in ops/norm.cu.
template <int Vectors>
__device__ __forceinline__ void combine_norm(const CombineNormParams& p) {
  __shared__ float scratch[kNormThreads / 32];
  let_next_start();
  const uint32_t hidden = p.combine.hidden;
  const HeldWeights<Vectors> weights(p.weight, hidden);
  wait_for_previous();
  const uint64_t row = blockIdx.x, first = row * hidden;
  const float share = share_of(p.combine, row, scratch);
  float x[Vectors][8];
  load_stream(p.form, hidden, p.residual + first, p.delta ? p.delta + first : nullptr, p.delta_bias,
              x, [&](uint32_t i, float (&stream)[8]) {
                float sum[8];
                combine8(p.combine, row, i, share, sum);
#pragma unroll
                for (int k = 0; k < 8; k++) sum[k] = __bfloat162float(__float2bfloat16(sum[k]));
                add_scaled8(p.form, sum, stream);
                store8(p.residual + first + i, stream);
              });
  norm_row(p.form, hidden, weights, p.bias, x, scratch,
           [&](uint32_t i, const float (&normed)[8]) { store8(p.normed + first + i, normed); });
}

}  // namespace ebb

// Grid: rows.
EBB_KERNEL(experts_combine, ebb::CombineParams, ebb::kCombineThreads, 2) {
  using namespace ebb;
  __shared__ float scratch[kCombineThreads / 32];
  const uint64_t row = blockIdx.x;
  const float share = share_of(p, row, scratch);
  for (uint32_t i = threadIdx.x * 8; i < p.hidden; i += kCombineThreads * 8) {
    float sum[8];
    combine8(p, row, i, share, sum);
    store8(p.out + row * p.hidden + i, sum);
  }
}

// Grid: rows. The suffix is the largest hidden size.
EBB_KERNEL_EARLY(experts_combine_norm_2048, ebb::CombineNormParams, 256, 1) {
  ebb::combine_norm<1>(p);
}
EBB_KERNEL_EARLY(experts_combine_norm_4096, ebb::CombineNormParams, 256, 1) {
  ebb::combine_norm<2>(p);
}
EBB_KERNEL_EARLY(experts_combine_norm_8192, ebb::CombineNormParams, 256, 1) {
  ebb::combine_norm<4>(p);
}
EBB_KERNEL_EARLY(experts_combine_norm_16384, ebb::CombineNormParams, 256, 1) {
  ebb::combine_norm<8>(p);
}

// Grid: choices.
EBB_KERNEL(experts_weigh, ebb::WeighParams, ebb::kCombineThreads, 4) {
  using namespace ebb;
  const uint64_t choice = blockIdx.x, row = choice / p.per_token, place = p.places[choice];
  const float weight = p.weights[choice];
  for (uint32_t i = threadIdx.x * 8; i < p.hidden; i += kCombineThreads * 8) {
    float x[8];
    load8(p.x + row * p.hidden + i, x);
#pragma unroll
    for (int k = 0; k < 8; k++) x[k] *= weight;
    store8(p.out + place * p.hidden + i, x);
  }
}
