// The gated delta rule in chunks, before and after the state comes in: what follows from a chunk's
// keys and gates alone (rule_chunks.cuh), and norm and gates of what comes out.
#include "../common/eight.cuh"
#include "../common/reduce.cuh"
#include "rule_chunks.cuh"

namespace ebb {

// Shared memory: keys, in whose place T comes; A in rows of kMatrixStride; scalars of rows.
constexpr uint32_t kMatrixStride = kChunkRows + 4;
constexpr uint32_t kMatrixAt = kChunkRows * kChunkKeyDim * 2;
constexpr uint32_t kRowScalarsAt = kMatrixAt + kChunkRows * kMatrixStride * 4;

struct RowScalars {
  float log_decay[kChunkRows];
  float sum[kChunkRows];  // of the logarithms up to a row
  float strength[kChunkRows];
  float of_k[kChunkRows];
  float of_q[kChunkRows];
};
constexpr uint32_t kPrepareShared = kRowScalarsAt + sizeof(RowScalars);
static_assert(kPrepareShared == 35072);

// Where a value of T is: a thread's column is in a bank of its own, and so are pairs of eight rows.
__device__ __forceinline__ uint32_t inverse_place(uint32_t row, uint32_t column) {
  return row * kChunkRows + (column ^ (row & 3) * 8);
}

// Brings keys to shared memory, and finds out how long they and the queries are.
__device__ __forceinline__ void load_keys(const RuleParams& p, const StepChunk& chunk,
                                          uint32_t head, uint8_t* keys, RowScalars& scalars) {
  constexpr uint32_t kLanes = kChunkKeyDim / 8, kRows = kChunkThreads / kLanes;
  const uint32_t part = threadIdx.x % kLanes;
  const bf16* const heads = p.heads + p.k_head(head) * p.k_dim + 8 * part;
#pragma unroll
  for (uint32_t i = 0; i < kChunkRows / kRows; i++) {
    const uint32_t row = i * kRows + threadIdx.x / kLanes;
    uint4 q = make_uint4(0, 0, 0, 0), k = q;
    if (row < chunk.rows && 8 * part < p.k_dim) {
      const bf16* const from = heads + static_cast<uint64_t>(chunk.first_row + row) * p.in_width;
      q = *reinterpret_cast<const uint4*>(from + p.queries_at);
      k = *reinterpret_cast<const uint4*>(from + p.keys_at);
    }
    *reinterpret_cast<uint4*>(keys + wide_place(row, part)) = k;
    float x[8], qq = 0.f, kk = 0.f;
    unpack8(q, x);
#pragma unroll
    for (int j = 0; j < 8; j++) qq = fmaf(x[j], x[j], qq);
    unpack8(k, x);
#pragma unroll
    for (int j = 0; j < 8; j++) kk = fmaf(x[j], x[j], kk);
#pragma unroll
    for (uint32_t m = kLanes / 2; m > 0; m /= 2) {
      qq += __shfl_xor_sync(~0u, qq, m);
      kk += __shfl_xor_sync(~0u, kk, m);
    }
    if (part == 0) {
      scalars.of_q[row] = rsqrtf(qq + kDeltaEps) * rsqrtf(static_cast<float>(p.k_dim));
      scalars.of_k[row] = rsqrtf(kk + kDeltaEps);
    }
  }
}

// A, of a warp's 16 rows, up to its diagonal tile.
__device__ __forceinline__ void multiply_keys(const RuleParams& p, const uint8_t* keys,
                                              const RowScalars& scalars, float* matrix) {
  const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const uint32_t from = smem_address(keys), steps = (p.k_dim + 15) / 16;
  float sums[8][4] = {};
  for (uint32_t step = 0; step < steps; step++) {
    uint32_t a[4], b[4];
    ldmatrix_x4(a, from + wide_place(16 * warp + lane % 16, 2 * step + lane / 16));
#pragma unroll
    for (uint32_t tile = 0; tile < 4; tile++) {
      if (tile > warp) continue;
      const uint32_t row = 16 * tile + lane % 8 + lane / 16 * 8;
      ldmatrix_x4(b, from + wide_place(row, 2 * step + lane / 8 % 2));
      mma_bf16(sums[2 * tile], a, b[0], b[1]);
      mma_bf16(sums[2 * tile + 1], a, b[2], b[3]);
    }
  }
#pragma unroll
  for (uint32_t tile = 0; tile < 8; tile++) {
    if (tile / 2 > warp) continue;
#pragma unroll
    for (uint32_t i = 0; i < 4; i++) {
      const uint32_t row = 16 * warp + g + i / 2 * 8, column = 8 * tile + 2 * t + i % 2;
      const float length = scalars.of_k[row] * scalars.of_k[column] * scalars.strength[row];
      const float decay = __expf(scalars.sum[row] - scalars.sum[column]);
      matrix[row * kMatrixStride + column] = column < row ? sums[tile][i] * (length * decay) : 0.f;
    }
  }
}

// T by forward substitution, four rows at a time; a thread has a column of it, and nobody else
// reads that. T_i = e_i - sum of A_ij T_j over j < i.
__device__ __forceinline__ void invert(const float* matrix, float* inverse, uint32_t rows) {
  const uint32_t column = threadIdx.x;
  // Above the diagonal there are zeros, which nobody reads either.
  const uint32_t first = column / 32 * 32;
  for (uint32_t i = first; i < rows; i += 4) {
    float x[4];
#pragma unroll
    for (uint32_t r = 0; r < 4; r++) x[r] = i + r == column ? 1.f : 0.f;
    for (uint32_t j = first; j < i; j += 4) {
      float t[4];
#pragma unroll
      for (uint32_t s = 0; s < 4; s++) t[s] = inverse[inverse_place(j + s, column)];
#pragma unroll
      for (uint32_t r = 0; r < 4; r++) {
        const float4 a = *reinterpret_cast<const float4*>(matrix + (i + r) * kMatrixStride + j);
        x[r] = fmaf(-a.x, t[0], x[r]);
        x[r] = fmaf(-a.y, t[1], x[r]);
        x[r] = fmaf(-a.z, t[2], x[r]);
        x[r] = fmaf(-a.w, t[3], x[r]);
      }
    }
#pragma unroll
    for (uint32_t r = 0; r < 4; r++) {
#pragma unroll
      for (uint32_t s = 0; s < 4; s++)
        if (s < r) x[r] = fmaf(-matrix[(i + r) * kMatrixStride + i + s], x[s], x[r]);
      inverse[inverse_place(i + r, column)] = x[r];
    }
  }
}

__device__ __forceinline__ void delta_prepare(const RuleChunkParams& p) {
  EBB_DYNAMIC_SHARED(shared);
  float* const inverse = reinterpret_cast<float*>(shared);
  float* const matrix = reinterpret_cast<float*>(shared + kMatrixAt);
  RowScalars& scalars = *reinterpret_cast<RowScalars*>(shared + kRowScalarsAt);
  const StepChunk chunk = p.chunks[blockIdx.x];
  const uint32_t head = blockIdx.y, thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
  if (thread < kChunkRows) {
    const DecayAndStrength gate = gate_of_row<Rule::kDelta>(p.rule, chunk, head);
    scalars.log_decay[thread] = gate.log_decay;
    scalars.strength[thread] = gate.strength;
  }
  load_keys(p.rule, chunk, head, shared, scalars);
  __syncthreads();
  uint32_t* const record = record_of(p, blockIdx.x, head);
  if (thread < kChunkRows) {
    const float sum = sum_up_to_row(scalars.log_decay);
    scalars.sum[thread] = sum;
    record_scalars(record, sum, scalars.of_k[thread], scalars.of_q[thread]);
  }
  __syncthreads();
  const uint32_t tiles = (chunk.rows + 15) / 16;
  if (warp < tiles) multiply_keys(p.rule, shared, scalars, matrix);
  __syncthreads();
  if (thread < kChunkRows) invert(matrix, inverse, 16 * tiles);
  __syncthreads();
  if (warp >= tiles) return;
  uint32_t* const own = record + kRecordTilesAt + tiles_before(warp) * kTileWords;
  uint4* const out = reinterpret_cast<uint4*>(own) + lane;
  for (uint32_t tile = 0; tile <= warp; tile++) {
    SplitTile split;
#pragma unroll
    for (uint32_t i = 0; i < 4; i++) {
      const uint32_t row = 16 * warp + lane / 4 + i % 2 * 8;
      const uint32_t column = 16 * tile + lane % 4 * 2 + i / 2 * 8;
      const float2 pair = *reinterpret_cast<const float2*>(inverse + inverse_place(row, column));
      split.set(i, pair.x * scalars.strength[column], pair.y * scalars.strength[column + 1]);
    }
    out[tile * 64] = make_uint4(split.hi[0], split.hi[1], split.hi[2], split.hi[3]);
    out[tile * 64 + 32] = make_uint4(split.lo[0], split.lo[1], split.lo[2], split.lo[3]);
  }
}

// A warp's rows of a chunk and head, one after the other. What the rule has put out is the sum of
// what is there and what is in place of the values.
__device__ __forceinline__ void delta_finish(const RuleChunkParams& p) {
  constexpr uint32_t kWarps = kChunkThreads / 32;
  const RuleParams& rule = p.rule;
  const StepChunk chunk = p.chunks[blockIdx.x];
  const uint32_t head = blockIdx.y, channel = threadIdx.x % 32 * 8;
  const bool is_there = channel < rule.v_dim;
  float weight[8] = {};
  if (is_there) load8(rule.norm + channel, weight);
  for (uint32_t r = threadIdx.x / 32; r < chunk.rows; r += kWarps) {
    const uint64_t row = chunk.first_row + r;
    bf16* const out = rule.out + row * rule.v_width() + head * rule.v_dim + channel;
    const bf16* const in = rule.heads + row * rule.in_width + head * rule.v_dim + channel;
    float x[8] = {}, rest[8] = {}, z[8] = {}, squares = 0.f;
    if (is_there) {
      load8(out, x);
      load8(in + rule.values_at, rest);
      load8(in + rule.z_at(), z);
    }
#pragma unroll
    for (int i = 0; i < 8; i++) {
      x[i] += rest[i];
      squares = fmaf(x[i], x[i], squares);
    }
    const float scale = rsqrtf(warp_sum(squares) / static_cast<float>(rule.v_dim) + rule.eps);
#pragma unroll
    for (int i = 0; i < 8; i++) x[i] = x[i] * scale * weight[i] * silu(z[i]);
    if (is_there) store8(out, x);
  }
}

}  // namespace ebb

// Grid of both: (chunks, value heads).
EBB_KERNEL(delta_prepare, ebb::RuleChunkParams, ebb::kChunkThreads, 5) { ebb::delta_prepare(p); }
EBB_KERNEL(delta_finish, ebb::RuleChunkParams, ebb::kChunkThreads, 8) { ebb::delta_finish(p); }
