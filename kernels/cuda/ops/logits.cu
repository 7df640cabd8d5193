// Logits with a bias, times a multiplier, and capped: cap * tanh(logit / cap).
#include "../common/kernel.cuh"
#include "../common/ptx.cuh"

namespace ebb {

struct LogitParams {
  float* logits;     // [rows][vocab]
  const bf16* bias;  // [vocab], or null
  uint32_t vocab;
  float multiplier;
  float cap;  // 0: none
  uint32_t reserved;
};
static_assert(sizeof(LogitParams) == 32);

}  // namespace ebb

// Grid: (rows, any number).
EBB_KERNEL(finish_logits, ebb::LogitParams, 256, 1) {
  float* const row = p.logits + static_cast<uint64_t>(blockIdx.x) * p.vocab;
  for (uint32_t i = blockIdx.y * 256 + threadIdx.x; i < p.vocab; i += gridDim.y * 256) {
    const float bias = p.bias ? __bfloat162float(p.bias[i]) : 0.f;
    const float x = (row[i] + bias) * p.multiplier;
    row[i] = p.cap > 0.f ? p.cap * tanhf(x / p.cap) : x;
  }
}
