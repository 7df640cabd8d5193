// Logits times a multiplier, and capped: cap * tanh(logit / cap).
#include "../common/kernel.cuh"
#include "../common/ptx.cuh"

namespace ebb {

struct LogitParams {
  float* logits;
  uint64_t count;
  float multiplier;
  float cap;  // 0: none
};
static_assert(sizeof(LogitParams) == 24);

}  // namespace ebb

// Any grid.
EBB_KERNEL(finish_logits, ebb::LogitParams, 256, 1) {
  const uint64_t threads = static_cast<uint64_t>(gridDim.x) * 256;
  for (uint64_t i = blockIdx.x * 256ull + threadIdx.x; i < p.count; i += threads) {
    const float x = p.logits[i] * p.multiplier;
    p.logits[i] = p.cap > 0.f ? p.cap * tanhf(x / p.cap) : x;
  }
}
