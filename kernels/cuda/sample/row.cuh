// A row of logits as the sampling kernels see it, and what they are told about each sample.
//
// Every choice is made on integers: a token weighs its probability relative to the most likely
// one's, in units of 2^-30. The arithmetic is that of the engine's sampler
// (engine/serving/src/sampling/weight.rs), operation by operation and never fused, so both sample
// the same token from the same logits. Rows are cut into blocks of 128 logits; whoever needs only
// large ones skips the blocks whose maximum is too small.
#pragma once
#include "../common/kernel.cuh"
#include "../common/ordered.cuh"
#include "../common/ptx.cuh"

namespace ebb {

constexpr uint32_t kBlock = 128;
constexpr uint32_t kBlocksMax = 8192;  // a vocabulary of 2^20
constexpr uint32_t kTopMax = 20;
constexpr uint32_t kNone = ~0u;
// Scaled logits below this weigh nothing.
constexpr float kZeroBelow = -22.f;
// In place of a token.
constexpr uint32_t kNotFinite = ~0u, kNoCandidate = ~0u - 1;

struct SampleJob {
  uint64_t bits;              // random
  uint32_t row;               // of the logits
  float inverse_temperature;  // 0: the largest logit
  uint32_t top_k;             // 0: all
  float top_p;
  float floor;      // least scaled logit
  uint32_t whole;   // neither top-k nor min-p: its block sums are those of sample_sum
  uint32_t report;  // alternatives + 1, or 0
  uint32_t first_edit;
  uint32_t edits;
  uint32_t also;  // sample of the step before whose token counts once more, or kNone
  float repetition;
  float frequency;
  float presence;
  uint32_t reserved;
};
static_assert(sizeof(SampleJob) == 64);

struct LogitEdit {
  uint32_t id;
  float bias;
  uint32_t count;
  uint32_t flags;
};
constexpr uint32_t kMasked = 1, kInPrompt = 2;

struct SampleResult {
  uint32_t token;
  float logit;   // of the token, before edits; with a report
  float max;     // of the row, before edits; with a report
  uint32_t top;  // alternatives found
  double sum;    // of e^(logit - max), before edits; with a report
};
static_assert(sizeof(SampleResult) == 24);

struct TokenLogit {
  uint32_t id;
  float logit;
};

struct SampleParams {
  float* logits;                // [rows][vocab]
  const SampleJob* samples;     // [samples]
  const uint32_t* row_samples;  // [rows], the first sample of each
  const LogitEdit* edits;
  float* saved;  // for each edit, the logit before it
  // [rows], the same for the token of SampleJob::also; id kNone if that changed nothing more
  TokenLogit* saved_also;
  float* maxima;          // [rows][blocks]; infinite where a logit is not finite
  float* row_max;         // [rows], after edits
  uint64_t* sums;         // [samples][blocks], weights
  uint32_t* sampled;      // [samples], the tokens; before, those of the step before
  SampleResult* results;  // [samples]
  TokenLogit* top;        // [samples][kTopMax]
  uint32_t vocab;
  uint32_t blocks;  // ceil(vocab / 128)
};
static_assert(sizeof(SampleParams) == 104);

// Larger is better: by logit, of equals the lower id.
__device__ __forceinline__ uint64_t rank(uint32_t id, float logit) {
  return static_cast<uint64_t>(ordered(logit)) << 32 | static_cast<uint32_t>(~id);
}

// 2^(z + bits) for z <= 0.
__device__ __forceinline__ float exp2_fixed(float z, uint32_t bits) {
  constexpr float kRound = 12582912.f;
  z = z < -126.f ? -126.f : z;
  const float rounded = __fadd_rn(z, kRound);
  const float f = __fsub_rn(z, __fsub_rn(rounded, kRound));
  float p = 1.5353362e-4f;
  p = __fadd_rn(__fmul_rn(p, f), 1.3398874e-3f);
  p = __fadd_rn(__fmul_rn(p, f), 9.618437e-3f);
  p = __fadd_rn(__fmul_rn(p, f), 5.5503324e-2f);
  p = __fadd_rn(__fmul_rn(p, f), 2.4022648e-1f);
  p = __fadd_rn(__fmul_rn(p, f), 6.931472e-1f);
  p = __fadd_rn(__fmul_rn(p, f), 1.f);
  return __fmul_rn(p, __uint_as_float((__float_as_uint(rounded) + 127 + bits) << 23));
}

constexpr float kLog2E = 1.44269504088896340736f;

// The weight of a token whose scaled logit is y <= 0.
__device__ __forceinline__ uint32_t weight(float y) {
  constexpr float kRound = 12582912.f;
  constexpr uint32_t kRoundBits = 0x4b400000;
  const float scaled = exp2_fixed(__fmul_rn(y, kLog2E), 15);
  const float high = __fadd_rn(scaled, kRound);
  const float low =
      __fadd_rn(__fmul_rn(__fsub_rn(scaled, __fsub_rn(high, kRound)), 32768.f), kRound);
  return ((__float_as_uint(high) - kRoundBits) << 15) + (__float_as_uint(low) - kRoundBits);
}

// The sum over a warp of weights, of which each lane adds at most 4.
struct WeightSum {
  uint32_t high = 0, low = 0;
  __device__ __forceinline__ void add(uint32_t w) {
    high += w >> 16;
    low += w & 0xffff;
  }
  __device__ __forceinline__ uint64_t over_warp() const {
    return (static_cast<uint64_t>(__reduce_add_sync(~0u, high)) << 16) +
           __reduce_add_sync(~0u, low);
  }
};

// One row, seen by a sample.
struct Row {
  const float* logits;
  const float* maxima;
  float max;
  float inverse_temperature;
  uint32_t vocab;
  uint32_t blocks;
  __device__ __forceinline__ float scaled(float logit) const {
    return __fmul_rn(__fsub_rn(logit, max), inverse_temperature);
  }
  // Logit `i` (0..3) of this lane in a block: id block * 128 + 32 i + lane.
  __device__ __forceinline__ float load(uint32_t block, int i) const {
    const uint32_t id = block * kBlock + 32 * i + threadIdx.x % 32;
    return id < vocab ? logits[id] : -INFINITY;
  }
};

__device__ __forceinline__ Row row_of(const SampleParams& p, const SampleJob& d) {
  return {p.logits + static_cast<uint64_t>(d.row) * p.vocab,
          p.maxima + static_cast<uint64_t>(d.row) * p.blocks,
          p.row_max[d.row],
          d.inverse_temperature,
          p.vocab,
          p.blocks};
}

// All 128 logits of a block, four a lane in an order of their own: 16 bytes at a time where rows
// are aligned.
__device__ __forceinline__ void load_block(const float* row, uint32_t vocab, uint32_t block,
                                           float (&v)[4]) {
  if (vocab % 4 == 0) {
    const uint32_t id = block * kBlock + threadIdx.x % 32 * 4;
    const float4 f = id < vocab ? *reinterpret_cast<const float4*>(row + id)
                                : make_float4(-INFINITY, -INFINITY, -INFINITY, -INFINITY);
    v[0] = f.x, v[1] = f.y, v[2] = f.z, v[3] = f.w;
  } else {
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const uint32_t id = block * kBlock + 32 * i + threadIdx.x % 32;
      v[i] = id < vocab ? row[id] : -INFINITY;
    }
  }
}

// The largest of a block's logits, infinite if one is not finite (-inf is), in every lane.
__device__ __forceinline__ float block_max(const float (&v)[4]) {
  float max = -INFINITY;
#pragma unroll
  for (int i = 0; i < 4; i++) max = v[i] < INFINITY ? (v[i] > max ? v[i] : max) : INFINITY;
  return from_ordered(__reduce_max_sync(~0u, ordered(max)));
}

// Exclusive prefix sums over a CTA; `scratch` holds a value for each warp.
template <int Warps>
__device__ __forceinline__ uint64_t cta_exclusive(uint64_t v, uint64_t* scratch, uint64_t& total) {
  const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  uint64_t sum = v;
#pragma unroll
  for (uint32_t k = 1; k < 32; k *= 2) {
    const uint64_t other = __shfl_up_sync(~0u, sum, k);
    if (lane >= k) sum += other;
  }
  if (lane == 31) scratch[warp] = sum;
  __syncthreads();
  uint64_t before = 0;
  total = 0;
#pragma unroll
  for (int w = 0; w < Warps; w++) {
    if (w < static_cast<int>(warp)) before += scratch[w];
    total += scratch[w];
  }
  __syncthreads();
  return before + sum - v;
}

// The largest value over a CTA, in every thread.
template <int Warps>
__device__ __forceinline__ uint64_t cta_max(uint64_t v, uint64_t* scratch) {
#pragma unroll
  for (int k = 16; k > 0; k >>= 1) {
    const uint64_t other = __shfl_xor_sync(~0u, v, k);
    v = other > v ? other : v;
  }
  if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = v;
  __syncthreads();
#pragma unroll
  for (int w = 0; w < Warps; w++) v = scratch[w] > v ? scratch[w] : v;
  __syncthreads();
  return v;
}

}  // namespace ebb
