// What a row's experts have put out, weighted and added up in order of choice, behind what the
// shared expert has put out; and what experts read whose inputs are weighted.
#include "../common/eight.cuh"
#include "../common/kernel.cuh"
#include "../common/reduce.cuh"

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

constexpr int kCombineThreads = 256;

}  // namespace ebb

// Grid: rows.
EBB_KERNEL(experts_combine, ebb::CombineParams, ebb::kCombineThreads, 4) {
  using namespace ebb;
  __shared__ float scratch[kCombineThreads / 32];
  const uint64_t row = blockIdx.x;
  float share = 1.f;
  if (p.score) {
    float sum = 0.f;
    for (uint32_t i = threadIdx.x * 8; i < p.hidden; i += kCombineThreads * 8) {
      float x[8], w[8];
      load8(p.x + row * p.hidden + i, x);
      load8(p.score + i, w);
#pragma unroll
      for (int k = 0; k < 8; k++) sum += x[k] * w[k];
    }
    share = 1.f / (1.f + __expf(-cta_sum<kCombineThreads / 32>(sum, scratch)));
  }
  for (uint32_t i = threadIdx.x * 8; i < p.hidden; i += kCombineThreads * 8) {
    bf16* const out = p.out + row * p.hidden + i;
    float sum[8] = {};
    if (p.has_shared) {
      load8(out, sum);
#pragma unroll
      for (int k = 0; k < 8; k++) sum[k] *= share;
    }
    for (uint32_t c = 0; c < p.per_token; c++) {
      const uint64_t place = p.places[row * p.per_token + c];
      const float weight = p.weights ? p.weights[row * p.per_token + c] : 1.f;
      float y[8];
      load8(p.y + place * p.hidden + i, y);
#pragma unroll
      for (int k = 0; k < 8; k++) sum[k] += weight * y[k];
    }
    store8(out, sum);
  }
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
