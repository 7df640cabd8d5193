// The gated delta rule and Mamba-2 over the rows of a step's sequences. States are f32; a sequence
// that begins has none yet. Rows of a sequence are walked in order, so bits do not depend on how a
// prompt is cut.
#include "../common/eight.cuh"
#include "../common/kernel.cuh"
#include "../common/reduce.cuh"
#include "recurrent.cuh"

namespace ebb {

// Threads that own columns of the state, `lanes` neighbours each; behind them a warp that gets the
// next row ready, and one that finishes the one before.
constexpr uint32_t kOwners = 512, kWalkThreads = kOwners + 64;
// Values of the state in a thread's registers, and channels of queries, keys and values.
constexpr int kOwnedRows = 32, kChannelsMax = 256, kPerLane = kChannelsMax / 32;

// Where a channel of a query or a key lies in shared memory: neighbours that share a column read at
// once, each kOwnedRows of its own, in banks of their own.
__device__ __forceinline__ uint32_t channel_place(uint32_t channel) {
  return channel + channel / kOwnedRows * 4;
}
constexpr int kChannelPlaces = kChannelsMax / kOwnedRows * (kOwnedRows + 4);

// The same address, which the compiler cannot tell: it would keep those of a thread's whole
// column in registers over all rows, for the stores at the end.
__device__ __forceinline__ float* disguised(float* p) {
#ifndef EBB_EMULATED
  asm volatile("" : "+l"(p));
#endif
  return p;
}

// What a row asks of all columns.
struct WalkedRow {
  // Of length 1, queries divided by sqrt(k_dim); of Mamba-2 as they are. Zeros behind.
  alignas(16) float q[kChannelPlaces];
  alignas(16) float k[kChannelPlaces];
  float v[kChannelsMax];
  float q_dot_k;
  float decay;
  float strength;
};

// The warp that gets rows ready, one of them under way from memory.
template <Rule R>
struct RowReader {
  float q[kPerLane], k[kPerLane], v[kPerLane];
  DecayAndStrength gate;

  __device__ __forceinline__ void load(const RuleParams& p, const bf16* row,
                                       const HeadGates<R>& gates, uint32_t lane) {
    const uint32_t head = blockIdx.y, of_key = p.k_head(head) * p.k_dim;
    const bf16* const queries = row + p.queries_at + of_key;
    const bf16* const keys = row + p.keys_at + of_key;
    const bf16* const values = row + p.values_at + head * p.v_dim;
#pragma unroll
    for (int i = 0; i < kPerLane; i++) {
      const uint32_t c = lane + 32 * i;
      q[i] = k[i] = v[i] = 0.f;
      if (c < p.k_dim) {
        q[i] = __bfloat162float(queries[c]);
        k[i] = __bfloat162float(keys[c]);
      }
      if (c < p.v_dim) v[i] = __bfloat162float(values[c]);
    }
    gate = gates.of(p, row + p.gates_at(), head);
  }

  __device__ __forceinline__ void store(const RuleParams& p, WalkedRow& to, uint32_t lane) const {
    float of_q = 1.f, of_k = 1.f;
    if constexpr (R == Rule::kDelta) {
      float qq = 0.f, kk = 0.f;
#pragma unroll
      for (int i = 0; i < kPerLane; i++) {
        qq = fmaf(q[i], q[i], qq);
        kk = fmaf(k[i], k[i], kk);
      }
      of_q = rsqrtf(warp_sum(qq) + kDeltaEps) * rsqrtf(static_cast<float>(p.k_dim));
      of_k = rsqrtf(warp_sum(kk) + kDeltaEps);
    }
    float dot = 0.f;
#pragma unroll
    for (int i = 0; i < kPerLane; i++) {
      const uint32_t c = lane + 32 * i;
      to.q[channel_place(c)] = q[i] * of_q;
      to.k[channel_place(c)] = k[i] * of_k;
      to.v[c] = v[i];
      dot = fmaf(q[i] * of_q, k[i] * of_k, dot);
    }
    dot = warp_sum(dot);
    if (lane > 0) return;
    to.q_dot_k = dot;
    to.decay = expf(gate.log_decay);
    to.strength = gate.strength;
  }
};

// All threads of a CTA, in whichever of its parts they are.
__device__ __forceinline__ void walk_sync() { named_barrier_sync(1, kWalkThreads); }

template <Rule R>
__device__ __forceinline__ void walk(const RuleParams& p) {
  constexpr bool kIsDelta = R == Rule::kDelta;
  __shared__ WalkedRow rows[2];
  __shared__ float outs[2][kChannelsMax];
  if (blockIdx.x >= *p.states.seq_count) return;
  const StepSeq seq = p.states.seqs[blockIdx.x];
  const uint32_t head = blockIdx.y, lane = threadIdx.x % 32, v_dim = p.v_dim;
  const uint64_t stride = p.in_width;
  const bf16* const first = p.heads + seq.first_row * stride;
  if (threadIdx.x < kOwners) {
    const uint32_t part = threadIdx.x % p.lanes, column = threadIdx.x / p.lanes;
    const bool is_column = column < v_dim;
    const uint32_t channel = part * kOwnedRows;
    float* const mine =
        p.states.of(seq) + (static_cast<uint64_t>(head) * p.k_dim + channel) * v_dim + column;
    const int owned = is_column && channel < p.k_dim ? p.k_dim - channel : 0;
    float state[kOwnedRows];
#pragma unroll
    for (int i = 0; i < kOwnedRows; i++)
      state[i] = i < owned && seq.position > 0 ? mine[i * v_dim] : 0.f;
    const float skip = kIsDelta ? 0.f : __bfloat162float(p.skip[head]);
    walk_sync();
    for (uint32_t t = 0; t <= seq.rows; t++) {
      if (t < seq.rows) {
        const WalkedRow& row = rows[t % 2];
        float of_k = 0.f, of_q = 0.f;
        const float* const q = row.q + channel_place(channel);
        const float* const k = row.k + channel_place(channel);
#pragma unroll
        for (int i = 0; i < kOwnedRows; i += 4) {
          const float4 q4 = *reinterpret_cast<const float4*>(q + i);
          const float4 k4 = *reinterpret_cast<const float4*>(k + i);
          of_q = fmaf(q4.x, state[i], of_q);
          of_k = fmaf(k4.x, state[i], of_k);
          of_q = fmaf(q4.y, state[i + 1], of_q);
          of_k = fmaf(k4.y, state[i + 1], of_k);
          of_q = fmaf(q4.z, state[i + 2], of_q);
          of_k = fmaf(k4.z, state[i + 2], of_k);
          of_q = fmaf(q4.w, state[i + 3], of_q);
          of_k = fmaf(k4.w, state[i + 3], of_k);
        }
        for (uint32_t m = p.lanes / 2; m > 0; m /= 2) {
          of_q += __shfl_xor_sync(~0u, of_q, m);
          of_k += __shfl_xor_sync(~0u, of_k, m);
        }
        const float decay = row.decay, value = is_column ? row.v[column] : 0.f;
        const float known = kIsDelta ? decay * of_k : 0.f;
        const float change = (value - known) * row.strength;
#pragma unroll
        for (int i = 0; i < kOwnedRows; i += 4) {
          const float4 k4 = *reinterpret_cast<const float4*>(k + i);
          state[i] = fmaf(k4.x, change, decay * state[i]);
          state[i + 1] = fmaf(k4.y, change, decay * state[i + 1]);
          state[i + 2] = fmaf(k4.z, change, decay * state[i + 2]);
          state[i + 3] = fmaf(k4.w, change, decay * state[i + 3]);
        }
        if (is_column && part == 0) {
          const float out = fmaf(row.q_dot_k, change, decay * of_q);
          outs[t % 2][column] = kIsDelta ? out : fmaf(skip, value, out);
        }
      }
      walk_sync();
    }
    float* const end = disguised(mine);
#pragma unroll
    for (int i = 0; i < kOwnedRows; i++)
      if (i < owned) end[i * v_dim] = state[i];
  } else if (threadIdx.x < kOwners + 32) {
    const HeadGates<R> gates(p, head);
    RowReader<R> reader;
    reader.load(p, first, gates, lane);
    reader.store(p, rows[0], lane);
    if (seq.rows > 1) reader.load(p, first + stride, gates, lane);
    walk_sync();
    for (uint32_t t = 0; t <= seq.rows; t++) {
      if (t + 1 < seq.rows) {
        reader.store(p, rows[(t + 1) % 2], lane);
        if (t + 2 < seq.rows) reader.load(p, first + (t + 2) * stride, gates, lane);
      }
      walk_sync();
    }
  } else {
    const uint64_t v_width = p.v_width();
    const bf16* const z_row = first + p.z_at() + head * v_dim;
    bf16* const out_row = p.out + seq.first_row * v_width + head * v_dim;
    float weight[kPerLane], z[kPerLane];
#pragma unroll
    for (int i = 0; i < kPerLane; i++) {
      const uint32_t c = lane + 32 * i;
      weight[i] = 1.f;
      if (kIsDelta && c < v_dim) weight[i] = __bfloat162float(p.norm[c]);
      z[i] = 0.f;
    }
    walk_sync();
    for (uint32_t t = 0; t <= seq.rows; t++) {
      if (t > 0) {
        const float* const from = outs[(t - 1) % 2];
        float x[kPerLane], squares = 0.f;
#pragma unroll
        for (int i = 0; i < kPerLane; i++) {
          x[i] = lane + 32 * i < v_dim ? from[lane + 32 * i] : 0.f;
          squares = fmaf(x[i], x[i], squares);
        }
        float scale = 1.f;
        if (kIsDelta) scale = rsqrtf(warp_sum(squares) / static_cast<float>(v_dim) + p.eps);
#pragma unroll
        for (int i = 0; i < kPerLane; i++)
          if (lane + 32 * i < v_dim)
            out_row[(t - 1) * v_width + lane + 32 * i] =
                __float2bfloat16(x[i] * scale * weight[i] * silu(z[i]));
      }
      if (t < seq.rows)
#pragma unroll
        for (int i = 0; i < kPerLane; i++)
          if (lane + 32 * i < v_dim) z[i] = __bfloat162float(z_row[t * stride + lane + 32 * i]);
      walk_sync();
    }
  }
}

}  // namespace ebb

// Grid: (sequences at most, value heads).
EBB_KERNEL(delta_rule, ebb::RuleParams, ebb::kWalkThreads, 1) { ebb::walk<ebb::Rule::kDelta>(p); }
EBB_KERNEL(mamba_rule, ebb::RuleParams, ebb::kWalkThreads, 1) { ebb::walk<ebb::Rule::kMamba>(p); }
