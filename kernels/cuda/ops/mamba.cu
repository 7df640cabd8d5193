// Mamba-2 in chunks, before and after the state comes in (rule_chunks.cuh), and its norm.
#include "../common/eight.cuh"
#include "../common/reduce.cuh"
#include "rule_chunks.cuh"

namespace ebb {

struct MambaNormParams {
  bf16* out;           // [rows][parts][len], in place
  const bf16* weight;  // [parts][len]
  uint32_t parts;
  uint32_t len;  // a multiple of 8
  float eps;
  uint32_t reserved;
};
static_assert(sizeof(MambaNormParams) == 32);

__device__ __forceinline__ void mamba_prepare(const RuleChunkParams& p) {
  __shared__ float log_decays[kChunkRows];
  const DecayAndStrength gate = gate_of_row<Rule::kMamba>(p.rule, p.chunks[blockIdx.x], blockIdx.y);
  log_decays[threadIdx.x] = gate.log_decay;
  __syncthreads();
  uint32_t* const record = record_of(p, blockIdx.x, blockIdx.y);
  record_scalars(record, sum_up_to_row(log_decays), gate.strength, 1.f);
}

// Eight neighbouring channels of a row for each thread. What Mamba-2 has put out is the sum of what
// is there and what is in place of the values.
__device__ __forceinline__ void mamba_finish(const RuleChunkParams& p) {
  const RuleParams& rule = p.rule;
  const StepChunk chunk = p.chunks[blockIdx.x];
  const uint32_t channel = (blockIdx.y * kChunkThreads + threadIdx.x) * 8;
  if (channel >= rule.v_width()) return;
  for (uint32_t r = 0; r < chunk.rows; r++) {
    const uint64_t row = chunk.first_row + r;
    bf16* const out = rule.out + row * rule.v_width() + channel;
    const bf16* const in = rule.heads + row * rule.in_width + channel;
    float x[8], rest[8], z[8];
    load8(out, x);
    load8(in + rule.values_at, rest);
    load8(in + rule.z_at(), z);
#pragma unroll
    for (int i = 0; i < 8; i++) x[i] = (x[i] + rest[i]) * silu(z[i]);
    store8(out, x);
  }
}

// RMS norm of a part of a row.
__device__ __forceinline__ void mamba_norm(const MambaNormParams& p) {
  __shared__ float scratch[8];
  const uint64_t at = static_cast<uint64_t>(blockIdx.y) * p.len;
  bf16* const out = p.out + static_cast<uint64_t>(blockIdx.x) * p.parts * p.len + at;
  float squares = 0.f;
  for (uint32_t c = threadIdx.x * 8; c < p.len; c += 256 * 8) {
    float x[8];
    load8(out + c, x);
#pragma unroll
    for (int i = 0; i < 8; i++) squares = fmaf(x[i], x[i], squares);
  }
  const float mean = cta_sum<8>(squares, scratch) / static_cast<float>(p.len);
  const float scale = rsqrtf(mean + p.eps);
  for (uint32_t c = threadIdx.x * 8; c < p.len; c += 256 * 8) {
    float x[8], weight[8];
    load8(out + c, x);
    load8(p.weight + at + c, weight);
#pragma unroll
    for (int i = 0; i < 8; i++) x[i] = x[i] * scale * weight[i];
    store8(out + c, x);
  }
}

}  // namespace ebb

// Grid: (chunks, heads).
EBB_KERNEL(mamba_prepare, ebb::RuleChunkParams, ebb::kChunkRows, 8) { ebb::mamba_prepare(p); }

// Grid: (chunks, channels / 1024).
EBB_KERNEL(mamba_finish, ebb::RuleChunkParams, ebb::kChunkThreads, 8) { ebb::mamba_finish(p); }

// Grid: (rows, parts).
EBB_KERNEL(mamba_norm, ebb::MambaNormParams, 256, 4) { ebb::mamba_norm(p); }
