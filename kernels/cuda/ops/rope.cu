// Q, K and V after their projection: bias, per-head norm, RoPE, Hadamard rotation, and the append of K and V to the pages.
#include "../common/kernel.cuh"
#include "../common/pages.cuh"
#include "../common/ptx.cuh"
#include "../common/reduce.cuh"

namespace ebb {

struct RopeTableParams {
  const uint32_t* positions;  // [rows]
  const float* inv_freq;      // [half]
  float2* table;              // [rows][half]: cosine, sine
  uint32_t half;              // head_dim / 2
  float scale;                // of both
};
static_assert(sizeof(RopeTableParams) == 32);

struct RopeAppendParams {
  PageTable pages;
  const bf16* qkv;               // [rows][(q_heads + 2 * kv_heads) * head_dim]
  const bf16* bias;              // [(q_heads + 2 * kv_heads) * head_dim], or null
  const bf16* q_norm;            // [head_dim], or null; then k_norm too
  const bf16* k_norm;
  const float2* table;           // [rows][head_dim / 2]
  const uint32_t* positions;     // [rows]
  const uint32_t* first_blocks;  // [rows]: of the row's sequence
  const uint32_t* row_count;     // rows past it are padding
  bf16* q;                       // [rows][q_heads * head_dim]
  uint32_t layer;
  uint32_t q_heads;
  uint32_t kv_heads;
  float eps;
  uint32_t rotate_k;  // whether Q and K are multiplied by a Hadamard matrix after RoPE
  uint32_t reserved;
};
static_assert(sizeof(RopeAppendParams) == 136);

// Multiplies a head by the normalised Walsh-Hadamard matrix, H[i][j] = (-1)^popcount(i & j) / sqrt(D), in the order of
// `rope_append`: the bits of a channel's index are, from the lowest, i's, the lane's, h's. Stages in the order of the CPU's
// (`formats::rotation::hadamard`), so that sums round alike.
template <int P>
__device__ __forceinline__ void hadamard(float (&x)[2][P], uint32_t lane) {
  if constexpr (P == 2) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
      const float a = x[h][0], b = x[h][1];
      x[h][0] = a + b;
      x[h][1] = a - b;
    }
  }
#pragma unroll
  for (uint32_t k = 1; k < 32; k *= 2) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
#pragma unroll
      for (int i = 0; i < P; i++) {
        const float other = __shfl_xor_sync(~0u, x[h][i], k);
        x[h][i] = lane & k ? other - x[h][i] : other + x[h][i];
      }
    }
  }
  const float scale = P == 2 ? 0.08838834764831845f : 0.125f;  // 1 / sqrt(64 P)
#pragma unroll
  for (int i = 0; i < P; i++) {
    const float a = x[0][i], b = x[1][i];
    x[0][i] = (a + b) * scale;
    x[1][i] = (a - b) * scale;
  }
}

// One warp a (row, head): lane l holds channels P*l .. and the same plus D / 2, P = D / 64 each; channel i rotates with i + D / 2.
template <int D>
__device__ __forceinline__ void rope_append(const RopeAppendParams& p) {
  constexpr int P = D / 64;
  const uint32_t row = blockIdx.x, heads = p.q_heads + 2 * p.kv_heads;
  const uint32_t head = blockIdx.y * (blockDim.x / 32) + threadIdx.x / 32, lane = threadIdx.x % 32;
  let_next_start();
  const bool is_q = head < p.q_heads, is_v = head >= p.q_heads + p.kv_heads, any = row < *p.row_count && head < heads;
  // Where the row goes follows from what the step uploaded.
  bf16* to = nullptr;
  if (is_q) {
    to = p.q + (static_cast<uint64_t>(row) * p.q_heads + head) * D;
  } else if (any) {
    // Record (layer, side, KV head): K heads, then V heads, follow each other as they do in `qkv`.
    constexpr uint32_t kRecord = kSubBlockTokens * D * 2;
    const uint32_t position = p.positions[row];
    const RecordPlace place = record_place(p.pages, p.layer * 2 * p.kv_heads + head - p.q_heads, kRecord);
    const uint32_t frame = sub_block_frame(p.pages, p.first_blocks[row], position / kSubBlockTokens, place.slot);
    to = reinterpret_cast<bf16*>(frame_address(p.pages, frame, place.offset + position % kSubBlockTokens * (D * 2)));
  }
  wait_for_previous();
  if (!any) return;
  const bf16* from = p.qkv + (static_cast<uint64_t>(row) * heads + head) * D + lane * P;
  float x[2][P];
#pragma unroll
  for (int h = 0; h < 2; h++) {
#pragma unroll
    for (int i = 0; i < P; i++) {
      x[h][i] = __bfloat162float(from[h * (D / 2) + i]);
      if (p.bias) x[h][i] += __bfloat162float(p.bias[head * D + h * (D / 2) + lane * P + i]);
    }
  }
  if (!is_v) {
    if (p.q_norm) {
      float square = 0.f;
#pragma unroll
      for (int i = 0; i < P; i++) square += x[0][i] * x[0][i] + x[1][i] * x[1][i];
      const float inverse = rsqrtf(warp_sum(square) / D + p.eps);
      const bf16* weight = (is_q ? p.q_norm : p.k_norm) + lane * P;
#pragma unroll
      for (int h = 0; h < 2; h++) {
#pragma unroll
        for (int i = 0; i < P; i++) x[h][i] *= inverse * __bfloat162float(weight[h * (D / 2) + i]);
      }
    }
#pragma unroll
    for (int i = 0; i < P; i++) {
      const float2 cs = p.table[static_cast<uint64_t>(row) * (D / 2) + lane * P + i];
      const float a = x[0][i], b = x[1][i];
      x[0][i] = a * cs.x - b * cs.y;
      x[1][i] = b * cs.x + a * cs.y;
    }
    if (p.rotate_k) hadamard(x, lane);
  }
#pragma unroll
  for (int h = 0; h < 2; h++) {
    if constexpr (P == 2)
      *reinterpret_cast<uint32_t*>(to + h * (D / 2) + lane * P) = pack_bf16(x[h][0], x[h][1]);
    else
      to[h * (D / 2) + lane] = __float2bfloat16(x[h][0]);
  }
}

}  // namespace ebb

// Grid: rows. Once a step: every layer rotates by the same angles.
EBB_KERNEL(rope_table, ebb::RopeTableParams, 128, 1) {
  for (uint32_t i = threadIdx.x; i < p.half; i += blockDim.x) {
    const float angle = static_cast<float>(p.positions[blockIdx.x]) * p.inv_freq[i];
    float sine, cosine;
    sincosf(angle, &sine, &cosine);
    p.table[static_cast<uint64_t>(blockIdx.x) * p.half + i] = make_float2(cosine * p.scale, sine * p.scale);
  }
}

// Grid: (rows, heads / 8).
EBB_KERNEL_EARLY(rope_append_d128, ebb::RopeAppendParams, 256, 1) { ebb::rope_append<128>(p); }
EBB_KERNEL_EARLY(rope_append_d64, ebb::RopeAppendParams, 256, 1) { ebb::rope_append<64>(p); }
