// RMSNorm of f32 rows, and back: of tokens, or of the heads of tokens.
#include "../common/kernel.cuh"
#include "../common/ptx.cuh"
#include "../common/reduce.cuh"

namespace ebb {

struct GradNormParams {
  const float* x;
  const bf16* weight;  // [width]
  float* out;          // norm(x) * weight; backwards what `grad` becomes, and may be `grad`
  const float* grad;   // backwards: of norm(x) * weight
  const float* add;    // backwards: added to `out`, laid out like it, or null
  uint64_t x_stride;   // from a token to the next
  uint64_t out_stride;
  uint64_t grad_stride;
  uint32_t heads;  // rows of a token, one after the other
  uint32_t width;  // values of a row
  float eps;
  uint32_t reserved;
};
static_assert(sizeof(GradNormParams) == 80);

}  // namespace ebb

// Grid of both: tokens * heads.
EBB_KERNEL(grad_norm, ebb::GradNormParams, 256, 1) {
  __shared__ float scratch[8];
  const uint64_t token = blockIdx.x / p.heads, head = blockIdx.x % p.heads * p.width;
  const float* x = p.x + token * p.x_stride + head;
  float* out = p.out + token * p.out_stride + head;
  float square = 0.f;
  for (uint32_t i = threadIdx.x; i < p.width; i += 256) square += x[i] * x[i];
  const float inverse = 1.f / sqrtf(ebb::cta_sum<8>(square, scratch) / p.width + p.eps);
  for (uint32_t i = threadIdx.x; i < p.width; i += 256)
    out[i] = x[i] * inverse * __bfloat162float(p.weight[i]);
}

// With n = 1 / rms(x): dx = n w g - x n^3 mean(w g x).
EBB_KERNEL(grad_norm_back, ebb::GradNormParams, 256, 1) {
  __shared__ float scratch[8];
  const uint64_t token = blockIdx.x / p.heads, head = blockIdx.x % p.heads * p.width;
  const float *x = p.x + token * p.x_stride + head, *grad = p.grad + token * p.grad_stride + head;
  const float* add = p.add ? p.add + token * p.out_stride + head : nullptr;
  float* out = p.out + token * p.out_stride + head;
  float square = 0.f, along = 0.f;
  for (uint32_t i = threadIdx.x; i < p.width; i += 256) {
    square += x[i] * x[i];
    along += __bfloat162float(p.weight[i]) * grad[i] * x[i];
  }
  const float inverse = 1.f / sqrtf(ebb::cta_sum<8>(square, scratch) / p.width + p.eps);
  const float pull = ebb::cta_sum<8>(along, scratch) / p.width * inverse * inverse * inverse;
  for (uint32_t i = threadIdx.x; i < p.width; i += 256) {
    const float found = inverse * __bfloat162float(p.weight[i]) * grad[i] - x[i] * pull;
    out[i] = add ? add[i] + found : found;
  }
}
