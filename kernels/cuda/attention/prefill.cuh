// Attention of many rows of one sequence over its paged 16-bit cache, causal: chunked prefill.
//
// A tile is up to kRows (token, query head) pairs of one KV head: row m is token m / group, head m
// % group, so the heads that share a KV head share its tiles. S = Q K^T and O = P V with m16n8k16,
// 16 rows a warp, kKeys keys at a time from a double buffer. The keys are walked in order from
// position 0, or the first that a window lets see, in steps aligned to kKeys and the maximum is
// exact, so a row's result does not depend on how the prompt was cut into chunks: steps of which a
// row sees nothing leave what it has as it is. tile.cuh has how sub-records lie in shared memory.
#pragma once
#include <type_traits>

#include "../common/kernel.cuh"
#include "../common/pages.cuh"
#include "../common/ptx.cuh"
#include "scores.cuh"
#include "tile.cuh"

namespace ebb {

// Consecutive rows of one sequence.
struct PrefillTile {
  uint32_t first_row;    // of q and out
  uint32_t rows;         // tokens; at most kRows / group
  uint32_t position;     // of the first row
  uint32_t first_block;  // of the sequence
};
static_assert(sizeof(PrefillTile) == 16);

struct PrefillParams {
  PageTable pages;
  const bf16* q;  // [rows][q_stride]
  bf16* out;      // [rows][q_heads * head_dim]
  const PrefillTile* tiles;
  uint32_t layer;
  uint32_t q_heads;
  uint32_t kv_heads;
  uint32_t q_stride;
  float scale_log2;  // what scores are multiplied with, times log2(e)
  uint32_t reserved;
  ScoreParams scores;
};
static_assert(sizeof(PrefillParams) == 112);

// ANY: see scores.cuh.
template <int D, bool ANY>
struct PrefillAttention {
  static constexpr int kWarps = 4, kThreads = kWarps * 32, kRows = kWarps * 16;
  // Few enough for the registers, and for two CTAs of a multiprocessor of sm_90 or one of sm_86.
  static constexpr int kKeys = D <= 160 ? 64 : 32, kSubBlocksPerStep = kKeys / kSubBlockTokens;
  static constexpr int kRecord = kSubBlockTokens * D * 2;
  static constexpr int kTile = Tile<D>::kBytes, kRow = Tile<D>::kRow;
  static constexpr bool kSwizzled = Tile<D>::kSwizzled;
  static constexpr int kSide = kSubBlocksPerStep * kTile;
  static constexpr int kSharedBytes = 2 * 2 * kSide;
  static constexpr int kChunks = D / 8, kSteps = D / 16;
  // Whether threads share the rows of a side evenly, each round of copies so many rows.
  static constexpr bool kEven = D == 64 || D == 128;
  static constexpr int kCopyRows = kThreads / kChunks;
  // Else each warp has so many of a step's sub-records, K's before V's: every kWarps-th.
  static constexpr int kOwn = 2 * kSubBlocksPerStep / kWarps;

  struct EvenFrames {
    uint32_t k[kSubBlocksPerStep], v[kSubBlocksPerStep];
  };
  struct OwnFrames {
    uint32_t of[kOwn];
  };
  using Frames = std::conditional_t<kEven, EvenFrames, OwnFrames>;

  // Scores in place of products: those of keys `first` + 8 i (+ 1). Positions before a window
  // become -infinity, if there are such.
  static __device__ __forceinline__ void settle_scores(const PrefillParams& p,
                                                       float (&x)[kKeys / 8][4], uint32_t first,
                                                       const uint32_t (&limit)[2], bool hides) {
#pragma unroll
    for (int i = 0; i < kKeys / 8; i++) {
#pragma unroll
      for (int e = 0; e < 4; e++) x[i][e] *= p.scale_log2;
    }
    if (p.scores.cap != 0.f) {
#pragma unroll
      for (int i = 0; i < kKeys / 8; i++) {
#pragma unroll
        for (int e = 0; e < 4; e++) x[i][e] = capped(p.scores, x[i][e]);
      }
    }
    if (!hides) return;
#pragma unroll
    for (int r = 0; r < 2; r++) {
      const int hidden = static_cast<int>(first_seen(p.scores, limit[r] - 1) - first);
#pragma unroll
      for (int i = 0; i < kKeys / 8; i++) {
#pragma unroll
        for (int e = 0; e < 2; e++)
          if (8 * i + e < hidden) x[i][2 * r + e] = -INFINITY;
      }
    }
  }

  static __device__ __forceinline__ void run(const PrefillParams& p, uint8_t* sm) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
    const uint32_t kv_head = blockIdx.x, group = p.q_heads / p.kv_heads;
    const PrefillTile tile = p.tiles[blockIdx.y];
    const uint32_t shared = smem_address(sm);
    const RecordPlace place_k =
        record_place(p.pages, (p.layer * 2) * p.kv_heads + kv_head, kRecord);
    const RecordPlace place_v =
        record_place(p.pages, (p.layer * 2 + 1) * p.kv_heads + kv_head, kRecord);
    const uint32_t kv_end = tile.position + tile.rows;
    const uint32_t steps = (kv_end + kKeys - 1) / kKeys,
                   last_sub_block = (kv_end - 1) / kSubBlockTokens;
    // The first position that the tile sees; computed where it is needed.
    auto first_of_tile = [&] {
      return ANY ? first_seen(p.scores, computed_here(tile.position)) : 0;
    };
    const uint32_t first_step = first_of_tile() / kKeys;
    // Of a step, the sub-block `i`, or another where that is not read.
    auto sub_block_of = [&](uint32_t step, uint32_t i) {
      const uint32_t at = min(step * kSubBlocksPerStep + i, last_sub_block);
      return ANY ? max(at, first_of_tile() / kSubBlockTokens) : at;
    };

    const uint32_t row8 = lane % 8, mat = lane / 8;
    // B operand of Q K^T
    const uint32_t pair_cols =
        ((mat >> 1) * 8 + row8) * kRow + (((mat & 1) ^ (kSwizzled ? row8 : 0)) * 16);
    // B operand of P V, transposed
    const uint32_t pair_rows =
        ((mat & 1) * 8 + row8) * kRow + (((mat >> 1) ^ (kSwizzled ? row8 : 0)) * 16);
    const uint32_t chunk = threadIdx.x % kChunks, copy_row = threadIdx.x / kChunks;

    Frames frames;
    auto look_up = [&](uint32_t step) {
      if constexpr (kEven) {
#pragma unroll
        for (int i = 0; i < kSubBlocksPerStep; i++) {
          const uint32_t sub_block = sub_block_of(step, i);
          frames.k[i] = sub_block_frame(p.pages, tile.first_block, sub_block, place_k.slot);
          frames.v[i] = sub_block_frame(p.pages, tile.first_block, sub_block, place_v.slot);
        }
      } else {
#pragma unroll
        for (int i = 0; i < kOwn; i++) {
          const uint32_t own = i * kWarps + warp;
          const uint32_t sub_block = sub_block_of(step, own % kSubBlocksPerStep);
          frames.of[i] = sub_block_frame(p.pages, tile.first_block, sub_block,
                                         own < kSubBlocksPerStep ? place_k.slot : place_v.slot);
        }
      }
    };
    // Rows past the end hold anything, and nobody sees those before the first: none is read.
    auto is_read = [&](uint32_t row) { return row < kv_end && (!ANY || row >= first_of_tile()); };
    auto copy = [&](uint32_t step) {
      const uint32_t buffer = shared + (step % 2) * 2 * kSide;
      if constexpr (kEven) {
#pragma unroll
        for (int i = 0; i < kKeys / kCopyRows; i++) {
          const uint32_t row = i * kCopyRows + copy_row, in_record = row % kSubBlockTokens;
          constexpr int kRoundsPerRecord = kSubBlockTokens / kCopyRows;
          const uint32_t record = i / kRoundsPerRecord;
          const uint32_t dst = buffer + record * kTile + (chunk / 8) * 2048 + in_record * 128 +
                               ((chunk ^ in_record) % 8) * 16;
          const uint32_t src = in_record * (D * 2) + chunk * 16;
          const uint32_t bytes = is_read(step * kKeys + row) ? 16 : 0;
          cp_async16_zfill(dst, frame_address(p.pages, frames.k[record], place_k.offset + src),
                           bytes);
          cp_async16_zfill(dst + kSide,
                           frame_address(p.pages, frames.v[record], place_v.offset + src), bytes);
        }
      } else {
        const uint32_t here = computed_here(lane);
#pragma unroll
        for (int i = 0; i < kOwn; i++) {
          const uint32_t own = i * kWarps + warp;
          const uint32_t first = step * kKeys + own % kSubBlocksPerStep * kSubBlockTokens;
          const uint32_t offset = own < kSubBlocksPerStep ? place_k.offset : place_v.offset;
          const uint8_t* src = frame_address(p.pages, frames.of[i], offset) + lane * 16;
#pragma unroll
          for (int k = 0; k < D / 16; k++) {  // 32 chunks at once
            const uint32_t at = k * 32 + here, row = at / kChunks;
            cp_async16_zfill(buffer + own * kTile + Tile<D>::at(row, at % kChunks), src + k * 512,
                             is_read(first + row) ? 16 : 0);
          }
        }
      }
    };
    look_up(first_step);
    copy(first_step);
    cp_async_commit();
    look_up(first_step + 1);

    // A operand: rows g and g + 8 of this warp's 16.
    uint32_t q[kSteps][4];
    uint32_t limit[2];  // positions this row may see: below `limit`
#pragma unroll
    for (int r = 0; r < 2; r++) {
      const uint32_t m = warp * 16 + g + 8 * r, token = m / group, head = m - token * group;
      const bool valid = token < tile.rows;
      limit[r] = valid ? tile.position + token + 1 : kv_end;
      const bf16* row = p.q + static_cast<uint64_t>(tile.first_row + token) * p.q_stride +
                        (kv_head * group + head) * D;
#pragma unroll
      for (int s = 0; s < kSteps; s++) {
        q[s][r] = valid ? *reinterpret_cast<const uint32_t*>(row + 16 * s + 2 * t) : 0u;
        q[s][r + 2] = valid ? *reinterpret_cast<const uint32_t*>(row + 16 * s + 8 + 2 * t) : 0u;
      }
    }
    float o[D / 8][4];
#pragma unroll
    for (int i = 0; i < D / 8; i++) o[i][0] = o[i][1] = o[i][2] = o[i][3] = 0.f;
    constexpr float kNone = ANY ? kNoScore : -INFINITY;
    float m[2] = {kNone, kNone}, l[2] = {0.f, 0.f};

#pragma unroll 1
    for (uint32_t step = first_step; step < steps; step++) {
      if (step + 1 < steps) {
        copy(step + 1);
        look_up(step + 2);
      }
      cp_async_commit();
      cp_async_wait<1>();
      __syncthreads();
      const uint32_t k_tile = shared + (step % 2) * 2 * kSide, v_tile = k_tile + kSide;
      float x[kKeys / 8][4];
#pragma unroll
      for (int i = 0; i < kKeys / 8; i++) x[i][0] = x[i][1] = x[i][2] = x[i][3] = 0.f;
#pragma unroll
      for (int s = 0; s < kSteps; s++) {
#pragma unroll
        for (int i = 0; i < kSubBlocksPerStep; i++) {
          uint32_t b[4];
          ldmatrix_x4(b, k_tile + i * kTile + Tile<D>::step(s) + (pair_cols ^ Tile<D>::flip(s)));
          mma_bf16(x[2 * i], q[s], b[0], b[1]);
          mma_bf16(x[2 * i + 1], q[s], b[2], b[3]);
        }
      }
      float top[2] = {m[0], m[1]};
      const bool masked = (step + 1) * kKeys > tile.position + 1;
      if (ANY)
        settle_scores(p, x, step * kKeys + 2 * t, limit,
                      step * kKeys < first_seen(p.scores, kv_end - 1));
#pragma unroll
      for (int i = 0; i < kKeys / 8; i++) {
#pragma unroll
        for (int e = 0; e < 4; e++) {
          if (!ANY) x[i][e] *= p.scale_log2;
          if (masked && step * kKeys + i * 8 + 2 * t + e % 2 >= limit[e / 2]) x[i][e] = -INFINITY;
          top[e / 2] = fmaxf(top[e / 2], x[i][e]);
        }
      }
#pragma unroll
      for (int r = 0; r < 2; r++) {
        top[r] = fmaxf(top[r], __shfl_xor_sync(~0u, top[r], 1));
        top[r] = fmaxf(top[r], __shfl_xor_sync(~0u, top[r], 2));
        const float scale = ex2(m[r] - top[r]);
        m[r] = top[r];
        l[r] *= scale;
#pragma unroll
        for (int i = 0; i < D / 8; i++) {
          o[i][2 * r] *= scale;
          o[i][2 * r + 1] *= scale;
        }
      }
#pragma unroll
      for (int i = 0; i < kKeys / 8; i++) {
#pragma unroll
        for (int e = 0; e < 4; e++) {
          x[i][e] = ex2(x[i][e] - m[e / 2]);
          l[e / 2] += x[i][e];
        }
      }
#pragma unroll
      for (int i = 0; i < kSubBlocksPerStep; i++) {
        const uint32_t a[4] = {pack_bf16(x[2 * i][0], x[2 * i][1]),
                               pack_bf16(x[2 * i][2], x[2 * i][3]),
                               pack_bf16(x[2 * i + 1][0], x[2 * i + 1][1]),
                               pack_bf16(x[2 * i + 1][2], x[2 * i + 1][3])};
#pragma unroll
        for (int s = 0; s < kSteps; s++) {
          uint32_t b[4];
          ldmatrix_x4_trans(b,
                            v_tile + i * kTile + Tile<D>::step(s) + (pair_rows ^ Tile<D>::flip(s)));
          mma_bf16(o[2 * s], a, b[0], b[1]);
          mma_bf16(o[2 * s + 1], a, b[2], b[3]);
        }
      }
      __syncthreads();
    }
#pragma unroll
    for (int r = 0; r < 2; r++) {
      l[r] += __shfl_xor_sync(~0u, l[r], 1);
      l[r] += __shfl_xor_sync(~0u, l[r], 2);
      const uint32_t row = warp * 16 + g + 8 * r, token = row / group, head = row - token * group;
      if (ANY) l[r] += exponential_of_sink(p.scores, kv_head * group + head, m[r]);
      const float inverse = 1.f / l[r];
      if (token >= tile.rows) continue;
      bf16* out =
          p.out +
          (static_cast<uint64_t>(tile.first_row + token) * p.q_heads + kv_head * group + head) * D;
#pragma unroll
      for (int i = 0; i < D / 8; i++)
        *reinterpret_cast<uint32_t*>(out + 8 * i + 2 * t) =
            pack_bf16(o[i][2 * r] * inverse, o[i][2 * r + 1] * inverse);
    }
  }
};

}  // namespace ebb

// Of head_dim D; CTAs that a multiprocessor should hold.
#define EBB_PREFILL_OF(NAME, D, CTAS, ANY)                                                \
  EBB_KERNEL(NAME, ebb::PrefillParams, (ebb::PrefillAttention<D, ANY>::kThreads), CTAS) { \
    EBB_DYNAMIC_SHARED(shared);                                                           \
    ebb::PrefillAttention<D, ANY>::run(p, shared);                                        \
  }
#define EBB_PREFILL(NAME, D, CTAS) EBB_PREFILL_OF(NAME, D, CTAS, false)
#define EBB_PREFILL_ANY(NAME, D, CTAS) EBB_PREFILL_OF(NAME, D, CTAS, true)
