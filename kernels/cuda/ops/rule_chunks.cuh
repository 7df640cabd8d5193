// The gated delta rule over chunks of 64 rows (Yang et al. 2024, "Gated Delta Networks", section
// 3.3), and Mamba-2: what their kernels share.
//
// In a chunk, with G_i the product of the decays up to row i, K and Q of length 1, Q divided by
// sqrt(k_dim), and S the state before:
//
//   A_ij = b_i G_i / G_j (k_i . k_j), j < i       T = (I + A)^-1
//   V' = T diag(b) (V - diag(G) K S)
//   O = diag(G) Q S + P V',  P_ij = G_i / G_j (q_i . k_j), j <= i
//   S = G_63 S + K^T diag(G_63 / G) V'
//
// Mamba-2 (Dao and Gu 2024, section 6) is the same without what a state knows already: T and A are
// left out, V' = diag(t) V for time steps t, and keys and queries stay as long as they are.
//
// Quotients of decays are exponentials of differences of logarithms: none is more than 1. Keys and
// queries are multiplied as they are, bf16 and exactly, and sums divided by their lengths. What
// else a product takes is the sum of two bf16, within 2^-17: sums of three products, or of two.
#pragma once
#include "../common/kernel.cuh"
#include "recurrent.cuh"

namespace ebb {

constexpr uint32_t kChunkRows = 64;
// Channels of keys at most, and columns of the state that a CTA has.
constexpr uint32_t kChunkKeyDim = 128, kSliceColumns = 32;
constexpr uint32_t kChunkThreads = 128;
// A decay of less than exp of it is 0 for what it multiplies; sums of 64 are precise.
constexpr float kLogDecayMin = -60.f;

// What is known of a chunk and head without the state: of each row the logarithm of G, and what
// makes key and query of length 1; then T diag(b) in tiles of 16 x 16 on and below the diagonal,
// row by row, each the operand A of the two bf16. Of Mamba-2 the second scalar is the time step,
// and there are no tiles.
constexpr uint32_t kTileWords = 2 * 32 * 4;
constexpr uint32_t kRecordTilesAt = 3 * kChunkRows;

struct RuleChunkParams {
  RuleParams rule;
  const StepChunk* chunks;
  const ChunkedSeq* chunked;
  uint32_t* records;  // [chunks][v_heads][record_words]
  uint32_t record_words;
  uint32_t reserved;
};
static_assert(sizeof(RuleChunkParams) == 160);

__device__ __forceinline__ uint32_t* record_of(const RuleChunkParams& p, uint32_t chunk,
                                               uint32_t head) {
  const uint64_t index = static_cast<uint64_t>(chunk) * p.rule.v_heads + head;
  return p.records + index * p.record_words;
}

// The gate of a chunk's row `threadIdx.x`. Rows behind the last change nothing.
template <Rule R>
__device__ __forceinline__ DecayAndStrength gate_of_row(const RuleParams& p, const StepChunk& chunk,
                                                        uint32_t head) {
  if (threadIdx.x >= chunk.rows) return {0.f, 0.f};
  const uint64_t row = chunk.first_row + threadIdx.x;
  const bf16* const gates = p.heads + row * p.in_width + p.gates_at();
  const DecayAndStrength gate = HeadGates<R>(p, head).of(p, gates, head);
  return {fmaxf(gate.log_decay, kLogDecayMin), gate.strength};
}

// The sum up to row `threadIdx.x`, in the same order for any number of rows.
__device__ __forceinline__ float sum_up_to_row(const float* log_decays) {
  float sum = 0.f;
#pragma unroll
  for (uint32_t i = 0; i < kChunkRows; i++) sum += i <= threadIdx.x ? log_decays[i] : 0.f;
  return sum;
}

// The scalars of the rows of a chunk, by sixty-four threads: `sum` is the logarithm of G.
__device__ __forceinline__ void record_scalars(uint32_t* record, float sum, float of_k,
                                               float of_q) {
  float* const out = reinterpret_cast<float*>(record) + threadIdx.x;
  out[0] = sum;
  out[kChunkRows] = of_k;
  out[2 * kChunkRows] = of_q;
}

// Tiles before row tile `tile`.
__device__ __forceinline__ uint32_t tiles_before(uint32_t tile) { return tile * (tile + 1) / 2; }

// Bytes from the start of a matrix in shared memory to 16 bytes of a row: rows of 128 values, and
// of 32. Eight rows at the same place lie in banks of their own.
__device__ __forceinline__ uint32_t wide_place(uint32_t row, uint32_t sixteen_bytes) {
  return row * 256 + ((sixteen_bytes ^ (row & 7)) << 4);
}
__device__ __forceinline__ uint32_t narrow_place(uint32_t row, uint32_t sixteen_bytes) {
  return row * 64 + ((sixteen_bytes ^ (row >> 1 & 3)) << 4);
}

// Two pairs of bf16 whose sum is a pair of floats, within 2^-17.
struct SplitPair {
  uint32_t hi, lo;

  __device__ __forceinline__ SplitPair(float x, float y) : hi(pack_bf16(x, y)) {
    const float2 rounded = unpack_bf16(hi);
    lo = pack_bf16(x - rounded.x, y - rounded.y);
  }
};

// A 16 x 16 operand A of such pairs.
struct SplitTile {
  uint32_t hi[4], lo[4];

  __device__ __forceinline__ void set(int at, float x, float y) {
    const SplitPair pair(x, y);
    hi[at] = pair.hi;
    lo[at] = pair.lo;
  }
};

// c[16x16] += a[16x16] * b[16x16], where a is exact.
__device__ __forceinline__ void multiply_exact(float (&c0)[4], float (&c1)[4],
                                               const uint32_t (&a)[4], const uint32_t (&hi)[4],
                                               const uint32_t (&lo)[4]) {
  mma_bf16(c0, a, hi[0], hi[1]);
  mma_bf16(c1, a, hi[2], hi[3]);
  mma_bf16(c0, a, lo[0], lo[1]);
  mma_bf16(c1, a, lo[2], lo[3]);
}

// The same, where both are split.
__device__ __forceinline__ void multiply_split(float (&c0)[4], float (&c1)[4], const SplitTile& a,
                                               const uint32_t (&hi)[4], const uint32_t (&lo)[4]) {
  multiply_exact(c0, c1, a.hi, hi, lo);
  mma_bf16(c0, a.lo, hi[0], hi[1]);
  mma_bf16(c1, a.lo, hi[2], hi[3]);
}

}  // namespace ebb
