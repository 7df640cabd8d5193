// Causal attention weights, the loss, and back from both, of f32 rows.
#include "../common/kernel.cuh"
#include "../common/ptx.cuh"
#include "../common/reduce.cuh"

namespace ebb {

struct GradSoftmaxParams {
  float* scores;   // [heads][rows][keys]: become weights; backwards they are the weights
  float* grads;    // the same, of the weights: become those of the scores. Backwards only
  uint32_t rows;   // tokens whose scores these are
  uint32_t keys;   // tokens up to the last of them
  uint32_t first;  // first of them; it sees first + 1 keys
  uint32_t reserved;
};
static_assert(sizeof(GradSoftmaxParams) == 32);

struct GradLossParams {
  float* logits;            // [rows][vocab]: become their gradients
  const uint32_t* targets;  // [rows]
  float* nats;              // [rows]: cross entropy
  uint32_t vocab;
  float scale;  // of each row's cross entropy in the loss
};
static_assert(sizeof(GradLossParams) == 32);

}  // namespace ebb

// Grid of both: heads * rows.
EBB_KERNEL(grad_softmax, ebb::GradSoftmaxParams, 256, 1) {
  __shared__ float scratch[8];
  float* row = p.scores + static_cast<uint64_t>(blockIdx.x) * p.keys;
  const uint32_t seen = p.first + blockIdx.x % p.rows + 1;
  float most = -INFINITY, sum = 0.f;
  for (uint32_t i = threadIdx.x; i < seen; i += 256) most = fmaxf(most, row[i]);
  most = ebb::cta_max<8>(most, scratch);
  for (uint32_t i = threadIdx.x; i < seen; i += 256) sum += row[i] = expf(row[i] - most);
  const float inverse = 1.f / ebb::cta_sum<8>(sum, scratch);
  for (uint32_t i = threadIdx.x; i < p.keys; i += 256) row[i] = i < seen ? row[i] * inverse : 0.f;
}

EBB_KERNEL(grad_softmax_back, ebb::GradSoftmaxParams, 256, 1) {
  __shared__ float scratch[8];
  const float* weights = p.scores + static_cast<uint64_t>(blockIdx.x) * p.keys;
  float* grads = p.grads + static_cast<uint64_t>(blockIdx.x) * p.keys;
  const uint32_t seen = p.first + blockIdx.x % p.rows + 1;
  float mean = 0.f;
  for (uint32_t i = threadIdx.x; i < seen; i += 256) mean += weights[i] * grads[i];
  mean = ebb::cta_sum<8>(mean, scratch);
  for (uint32_t i = threadIdx.x; i < p.keys; i += 256)
    grads[i] = i < seen ? weights[i] * (grads[i] - mean) : 0.f;
}

// Grid: rows.
EBB_KERNEL(grad_loss, ebb::GradLossParams, 256, 1) {
  __shared__ float scratch[8];
  float* row = p.logits + static_cast<uint64_t>(blockIdx.x) * p.vocab;
  const uint32_t target = p.targets[blockIdx.x];
  float most = -INFINITY, sum = 0.f;
  for (uint32_t i = threadIdx.x; i < p.vocab; i += 256) most = fmaxf(most, row[i]);
  most = ebb::cta_max<8>(most, scratch);
  for (uint32_t i = threadIdx.x; i < p.vocab; i += 256) sum += expf(row[i] - most);
  sum = ebb::cta_sum<8>(sum, scratch);
  if (threadIdx.x == 0) p.nats[blockIdx.x] = logf(sum) + most - row[target];
  __syncthreads();
  for (uint32_t i = threadIdx.x; i < p.vocab; i += 256)
    row[i] = p.scale * (expf(row[i] - most) / sum - (i == target ? 1.f : 0.f));
}
