// Chunked-prefill attention at 16 bit for sm_90a: what prefill.cuh computes, on the tensor cores'
// asynchronous path.
//
// A tile is up to 128 (token, query head) pairs of one KV head: row m is token m / group, head m %
// group, 64 rows for each of two warpgroups. One more warp, the producer, brings queries, keys and
// values to shared memory with the copy engine, one copy for a sub-record or a half of it (64
// channels), 128 keys at a time, in rings of STAGES. A persistent grid takes (tile, KV head) items
// from a counter, heavy ones first, and the producer runs ahead into the next item.
//
// A warpgroup starts S' = Q K'^T of the next 128 keys and O += P V of these, and takes the
// exponentials of S' while O is summed; the two warpgroups take turns at the tensor cores, so that
// one multiplies while the other takes exponentials.
//
// Keys are walked in order from position 0 in steps aligned to 128. The maximum that exponents are
// relative to follows the exact one only when it is exceeded by more than a factor of 2^kSlack:
// that depends on the row's scores alone, in that order, so a row's result depends neither on how
// the prompt was cut into chunks nor on its company.
#pragma once
#include "../common/pages.cuh"
#include "../common/ptx.cuh"
#include "../common/registers.cuh"
#include "../common/tensor_copy.cuh"
#include "../common/wgmma.cuh"
#include "prefill.cuh"

namespace ebb {

struct PrefillWgmmaParams {
  TensorMap queries;  // [rows][q_heads][halves][64]; a copy: the rows and heads of a tile, one half
  TensorMap keys;     // the arena, a copy: half a sub-record
  TensorMap values;   // the arena, a copy: a sub-record
  PageTable pages;
  bf16* out;  // [rows][q_heads * head_dim]
  const PrefillTile* tiles;
  // [2]: items handed out beyond the first of each CTA, CTAs done; zero between launches
  uint32_t* work;
  uint32_t tile_count;
  uint32_t layer;
  uint32_t q_heads;
  uint32_t kv_heads;
  float scale_log2;  // what scores are multiplied with, times log2(e); more than 0
  uint32_t reserved;
  ScoreParams scores;
  uint32_t reserved2[4];
};
static_assert(sizeof(PrefillWgmmaParams) == 512);

// ANY: see scores.cuh.
#ifndef EBB_HAS_WGMMA

template <int D, int STAGES, bool ANY>
struct PrefillWgmma {
  static constexpr int kThreads = 384;
  static __device__ __forceinline__ void run(const PrefillWgmmaParams&, uint8_t*) { __trap(); }
};

#else

template <int D, int STAGES, bool ANY>
struct PrefillWgmma {
  static constexpr int kWarpgroups = 2, kThreads = (kWarpgroups + 1) * 128;
  static constexpr int kRows = kWarpgroups * 64, kKeys = 128;
  static constexpr int kHalves = D / 64, kRecords = kKeys / kSubBlockTokens;
  static constexpr int kRecord = kSubBlockTokens * D * 2;
  static constexpr int kHalfKeys = kKeys * 128;  // bytes of 64 channels of a step's keys
  static constexpr int kSide = kHalves * kHalfKeys;
  static constexpr int kHalfQueries = kRows * 128;
  static constexpr int kConsumerWarps = kWarpgroups * 4;
  static constexpr float kSlack = 8.f;
  // Shared memory: keys [STAGES][halves][128 keys][128 bytes], values [STAGES][records][halves][16
  // tokens][128 bytes], queries [halves][128 rows][128 bytes], barriers, and the item that the
  // queries belong to.
  static constexpr uint32_t kValues = STAGES * kSide, kQueries = 2 * STAGES * kSide,
                            kBarriers = kQueries + kHalves * kHalfQueries;
  static constexpr uint32_t kItem = kBarriers + 8 * (2 + 4 * STAGES);
  static constexpr int kSharedBytes = kBarriers + 256;
  static_assert(kItem % 16 == 0 && kItem + sizeof(PrefillTile) + 4 <= kSharedBytes &&
                (D == 64 || D == 128));
  // Beyond the end of any arena: rows that a copy fills with zeros.
  static constexpr uint32_t kNowhere = 0x7fffff00;
  // Named barriers: whose turn at the tensor cores it is, and a warpgroup's own.
  static constexpr uint32_t kTurn = 1, kTail = 1 + kWarpgroups;

  const PrefillWgmmaParams& p;
  uint8_t* const shared;
  const uint32_t base;

  __device__ __forceinline__ uint32_t queries_full() const { return base + kBarriers; }
  __device__ __forceinline__ uint32_t queries_empty() const { return base + kBarriers + 8; }
  // A stage's barriers: `side` is 0 for keys and 1 for values.
  __device__ __forceinline__ uint32_t full(int side, uint32_t stage) const {
    return base + kBarriers + 16 + 8 * (2 * side * STAGES + stage);
  }
  __device__ __forceinline__ uint32_t empty(int side, uint32_t stage) const {
    return full(side, stage) + 8 * STAGES;
  }

  // A place in a ring: the stage, and the parity of the phase that fills it.
  struct Place {
    uint32_t stage = 0, parity = 0;
    __device__ __forceinline__ void advance() {
      if (++stage == STAGES) {
        stage = 0;
        parity ^= 1;
      }
    }
  };

  __device__ __forceinline__ PrefillWgmma(const PrefillWgmmaParams& params, uint8_t* sm)
      : p(params), shared(sm), base(smem_address(sm)) {}

  static __device__ __forceinline__ void run(const PrefillWgmmaParams& params, uint8_t* sm) {
    PrefillWgmma kernel(params, sm);
    if (threadIdx.x == 0) {
      mbarrier_init(kernel.queries_full(), 1);
      mbarrier_init(kernel.queries_empty(), kWarpgroups * 128);
      for (int side = 0; side < 2; side++) {
        for (uint32_t stage = 0; stage < STAGES; stage++) {
          mbarrier_init(kernel.full(side, stage), 1);
          mbarrier_init(kernel.empty(side, stage), kConsumerWarps);
        }
      }
      mbarrier_init_fence();
    }
    __syncthreads();
    const uint32_t warpgroup = __shfl_sync(~0u, threadIdx.x / 128, 0);
    if (warpgroup == kWarpgroups) {
      registers_shrink<40>();
      if (threadIdx.x / 32 == kConsumerWarps) kernel.produce();
    } else {
      registers_grow<232>();
      kernel.consume(warpgroup);
    }
  }

  // ---- The producer: one warp.

  // Four steps of sub-records at a time, one for each lane. Their rows in the arena are two loads
  // away, page table and frame list, so each load is started a batch before its value is used.
  static constexpr uint32_t kBatchSteps = 32 / kRecords;

  struct Lookup {
    const PageTable& pages;
    uint32_t first_block, first_sub_block, sub_blocks, lane;
    RecordPlace k, v;

    __device__ __forceinline__ bool inside(uint32_t batch) const {
      return batch * 32 + lane < sub_blocks && (!ANY || batch * 32 + lane >= first_sub_block);
    }
    // Where the list of frames of this lane's block starts.
    __device__ __forceinline__ uint32_t list(uint32_t batch) const {
      return inside(batch)
                 ? __ldg(&pages.blocks[first_block + (batch * 32 + lane) / kSubBlocks].first_frame)
                 : 0;
    }
    // Frames of keys and values.
    __device__ __forceinline__ uint2 frames(uint32_t batch, uint32_t list) const {
      if (!inside(batch)) return make_uint2(0, 0);
      const uint32_t at = list + lane % kSubBlocks * pages.frames_per_sub_block;
      return make_uint2(__ldg(&pages.frames[at + k.slot]), __ldg(&pages.frames[at + v.slot]));
    }
    __device__ __forceinline__ uint2 rows(uint32_t batch, uint2 frames) const {
      if (!inside(batch)) return make_uint2(kNowhere, kNowhere);
      return make_uint2(frame_row(pages, frames.x, k.offset, D * 2),
                        frame_row(pages, frames.y, v.offset, D * 2));
    }
  };
  static_assert(32 % kSubBlocks == 0 && kRecords == kSubBlocks);

  __device__ __forceinline__ void produce() const {
    const uint32_t lane = threadIdx.x % 32, total = p.tile_count * p.kv_heads,
                   group = p.q_heads / p.kv_heads;
    if (lane == 0) {
      prefetch_tensor_map(&p.queries);
      prefetch_tensor_map(&p.keys);
      prefetch_tensor_map(&p.values);
    }
    Place keys, values;
    uint32_t item = blockIdx.x, queries_parity = 1;
#pragma unroll 1
    while (item < total) {
      uint32_t next = 0;  // asked for now, needed at the end
      if (lane == 0) next = atomicAdd(p.work, 1) + gridDim.x;
      const uint32_t index = item / p.kv_heads, kv_head = item - index * p.kv_heads;
      const uint4 words = __ldg(reinterpret_cast<const uint4*>(p.tiles + index));
      const PrefillTile tile = {words.x, words.y, words.z, words.w};
      const uint32_t kv_end = tile.position + tile.rows, steps = (kv_end + kKeys - 1) / kKeys;
      const uint32_t first = ANY ? first_seen(p.scores, tile.position) : 0,
                     first_step = first / kKeys, first_batch = first_step / kBatchSteps;
      const Lookup lookup = {
          p.pages,
          tile.first_block,
          first / kSubBlockTokens,
          (kv_end + kSubBlockTokens - 1) / kSubBlockTokens,
          lane,
          record_place(p.pages, (p.layer * 2) * p.kv_heads + kv_head, kRecord),
          record_place(p.pages, (p.layer * 2 + 1) * p.kv_heads + kv_head, kRecord)};
      uint32_t list = lookup.list(first_batch + 1);
      uint2 frames = lookup.frames(first_batch, lookup.list(first_batch)), rows = make_uint2(0, 0);

      mbarrier_wait(queries_empty(), queries_parity);
      queries_parity ^= 1;
      if (lane == 0) {
        *reinterpret_cast<PrefillTile*>(shared + kItem) = tile;
        *reinterpret_cast<uint32_t*>(shared + kItem + sizeof(PrefillTile)) = kv_head;
        mbarrier_arrive_expect(queries_full(), kHalves * (kRows / group) * group * 128);
        for (int half = 0; half < kHalves; half++)
          tensor_copy_4d(base + kQueries + half * kHalfQueries, &p.queries, 0, kv_head * group,
                         tile.first_row, half, queries_full());
      }

      // Keys go one step ahead of values, in the order of their use.
#pragma unroll 1
      for (uint32_t step = first_step; step <= steps; step++) {
        const uint32_t value_row =
            __shfl_sync(~0u, rows.y, (step - 1) % kBatchSteps * kRecords + lane % kRecords);
        if (step % kBatchSteps == 0 || (ANY && step == first_step)) {
          const uint32_t batch = step / kBatchSteps;
          rows = lookup.rows(batch, frames);
          frames = lookup.frames(batch + 1, list);
          list = lookup.list(batch + 2);
        }
        if (step < steps) {
          const uint32_t row =
              __shfl_sync(~0u, rows.x, step % kBatchSteps * kRecords + lane / kHalves % kRecords);
          mbarrier_wait(empty(0, keys.stage), keys.parity ^ 1);
          if (lane == 0) mbarrier_arrive_expect(full(0, keys.stage), kSide);
          __syncwarp();
          if (lane < kRecords * kHalves) {
            const uint32_t record = lane / kHalves, half = lane % kHalves;
            tensor_copy_3d(
                base + keys.stage * kSide + half * kHalfKeys + record * (kSubBlockTokens * 128),
                &p.keys, 0, row, half, full(0, keys.stage));
          }
          keys.advance();
        }
        if (step > first_step) {
          mbarrier_wait(empty(1, values.stage), values.parity ^ 1);
          if (lane == 0) mbarrier_arrive_expect(full(1, values.stage), kSide);
          __syncwarp();
          if (lane < kRecords)
            tensor_copy_3d(base + kValues + values.stage * kSide + lane * kRecord, &p.values, 0,
                           value_row, 0, full(1, values.stage));
          values.advance();
        }
      }
      item = __shfl_sync(~0u, next, 0);
    }
    mbarrier_wait(queries_empty(), queries_parity);
    if (lane == 0) {
      reinterpret_cast<PrefillTile*>(shared + kItem)->rows = 0;  // no more
      mbarrier_arrive(queries_full());
      // The last CTA leaves the counters as it found them.
      if (atomicInc(p.work + 1, gridDim.x - 1) == gridDim.x - 1) *p.work = 0;
    }
  }

  // ---- The consumers: two warpgroups.

  __device__ __forceinline__ void consume(uint32_t warpgroup) const {
    const uint32_t lane = threadIdx.x % 32, g = lane / 4, t = lane % 4,
                   group = p.q_heads / p.kv_heads;
    // of the tile; the other is 8 below
    const uint32_t first_row = warpgroup * 64 + threadIdx.x / 32 % 4 * 16 + g;
    const uint64_t q_matrix = wgmma_matrix(base + kQueries + warpgroup * (64 * 128), 16, 1024);
    const uint64_t k_matrix = wgmma_matrix(base, 16, 1024);
    const uint64_t v_matrix = wgmma_matrix(base + kValues, kSubBlockTokens * 128, 1024);
    // Capped scores are of base 2 already.
    const bool caps = ANY && p.scores.cap != 0.f;
    const float to_log2 = caps ? 1.f : p.scale_log2, slack = kSlack / to_log2;
    auto release = [&](uint32_t barrier) {
      if (lane == 0) mbarrier_arrive(barrier);
    };

    // scores, then exponentials: rows g and g + 8, keys 8 i + 2 t (+ 1)
    float s[kKeys / 2];
    uint32_t a[kRecords][4];  // exponentials as the A operand
    float o[D / 2];
    float top[2], sum[2], scale[2];
    Place keys, values;
    // the first turn is warpgroup 0's
    if (warpgroup == 1) named_barrier_arrive(kTurn, kWarpgroups * 128);

#pragma unroll 1
    for (uint32_t parity = 0;; parity ^= 1) {
      mbarrier_wait(queries_full(), parity);
      const PrefillTile tile = *reinterpret_cast<const PrefillTile*>(shared + kItem);
      const uint32_t kv_head =
          *reinterpret_cast<const uint32_t*>(shared + kItem + sizeof(PrefillTile));
      if (tile.rows == 0) break;
      const uint32_t kv_end = tile.position + tile.rows, steps = (kv_end + kKeys - 1) / kKeys;
      const uint32_t first_step = ANY ? first_seen(p.scores, tile.position) / kKeys : 0,
                     last_first = ANY ? first_seen(p.scores, kv_end - 1) : 0;
      uint32_t from[2], limit[2];  // a row may see the positions from the one on, below the other
#pragma unroll
      for (int r = 0; r < 2; r++) {
        const uint32_t token = (first_row + 8 * r) / group;
        limit[r] = min(tile.position + token + 1, kv_end);
        from[r] = ANY ? first_seen(p.scores, limit[r] - 1) : 0;
        top[r] = ANY ? kNoScore : -INFINITY;
        sum[r] = 0.f;
      }
#pragma unroll
      for (int i = 0; i < D / 2; i++) o[i] = 0.f;

      auto start_scores = [&] {
        wgmma_pin(s);
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < D / 16; k++) {
          wgmma_ss(s, q_matrix + (k / 4 * kHalfQueries + k % 4 * 32) / 16,
                   k_matrix + (keys.stage * kSide + k / 4 * kHalfKeys + k % 4 * 32) / 16, k > 0);
        }
        wgmma_commit();
        wgmma_pin(s);
      };
      auto start_output = [&] {
        wgmma_pin(o);
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < kRecords; k++)
          wgmma_rs(o, a[k], v_matrix + (values.stage * kSide + k * kRecord) / 16);
        wgmma_commit();
        wgmma_pin(o);
      };
      // Scores to exponentials; `scale` is what the sums so far must be multiplied with.
      auto soften = [&](uint32_t step) {
        if (caps) {
#pragma unroll
          for (int i = 0; i < kKeys / 2; i++) s[i] = capped(p.scores, s[i] * p.scale_log2);
        }
        if (ANY && step * kKeys < last_first) {
#pragma unroll
          for (int r = 0; r < 2; r++) {
            const int32_t hidden = static_cast<int32_t>(from[r] - step * kKeys - 2 * t);
#pragma unroll
            for (int i = 0; i < kKeys / 8; i++) {
#pragma unroll
              for (int e = 0; e < 2; e++)
                if (8 * i + e < hidden) s[4 * i + 2 * r + e] = -INFINITY;
            }
          }
        }
        if ((step + 1) * kKeys > tile.position + 1) {
#pragma unroll
          for (int r = 0; r < 2; r++) {
            const int32_t visible = static_cast<int32_t>(limit[r] - step * kKeys - 2 * t);
#pragma unroll
            for (int i = 0; i < kKeys / 8; i++) {
#pragma unroll
              for (int e = 0; e < 2; e++)
                if (8 * i + e >= visible) s[4 * i + 2 * r + e] = -INFINITY;
            }
          }
        }
#pragma unroll
        for (int r = 0; r < 2; r++) {
          float most = s[2 * r];
#pragma unroll
          for (int i = 0; i < kKeys / 8; i++)
            most = fmaxf(most, fmaxf(s[4 * i + 2 * r], s[4 * i + 2 * r + 1]));
          most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
          most = fmaxf(most, __shfl_xor_sync(~0u, most, 2));
          scale[r] = 1.f;
          if (most > top[r] + slack) {
            scale[r] = ex2((top[r] - most) * to_log2);
            top[r] = most;
          }
          const float offset = top[r] * to_log2;
          float even = 0.f, odd = 0.f;
#pragma unroll
          for (int i = 0; i < kKeys / 8; i++) {
            even += s[4 * i + 2 * r] = ex2(fmaf(s[4 * i + 2 * r], to_log2, -offset));
            odd += s[4 * i + 2 * r + 1] = ex2(fmaf(s[4 * i + 2 * r + 1], to_log2, -offset));
          }
          sum[r] = fmaf(sum[r], scale[r], even + odd);
        }
      };
      auto pack = [&] {
#pragma unroll
        for (int k = 0; k < kRecords; k++) {
#pragma unroll
          for (int i = 0; i < 4; i++) a[k][i] = pack_bf16(s[8 * k + 2 * i], s[8 * k + 2 * i + 1]);
        }
      };

      mbarrier_wait(full(0, keys.stage), keys.parity);
      start_scores();
      wgmma_wait<0>();
      wgmma_pin(s);
      release(empty(0, keys.stage));
      keys.advance();
      soften(first_step);
      pack();

#pragma unroll 1
      for (uint32_t step = first_step + 1; step < steps; step++) {
        mbarrier_wait(full(0, keys.stage), keys.parity);
        named_barrier_sync(kTurn + warpgroup, kWarpgroups * 128);
        start_scores();
        mbarrier_wait(full(1, values.stage), values.parity);
        start_output();
        named_barrier_arrive(kTurn + (warpgroup ^ 1), kWarpgroups * 128);
        wgmma_wait<1>();
        wgmma_pin(s);
        release(empty(0, keys.stage));
        keys.advance();
        soften(step);
        // Mostly no row of the warp has moved its maximum. The branch also keeps the exponentials
        // before the wait: inside a block of straight code the assembler moves the wait to its
        // start.
        if (__any_sync(~0u, scale[0] != 1.f || scale[1] != 1.f)) {
          wgmma_wait<0>();
          wgmma_pin(o);
#pragma unroll
          for (int i = 0; i < D / 2; i++) o[i] *= scale[i / 2 % 2];
        } else {
          wgmma_pin(s);
          wgmma_wait<0>();
          wgmma_pin(o);
        }
        release(empty(1, values.stage));
        values.advance();
        pack();
      }
      mbarrier_arrive(queries_empty());  // each lane, which has read the item

      mbarrier_wait(full(1, values.stage), values.parity);
      if (kv_end % kSubBlockTokens != 0) clear_tail(warpgroup, values.stage, kv_end);
      start_output();
      wgmma_wait<0>();
      wgmma_pin(o);
      release(empty(1, values.stage));
      values.advance();

#pragma unroll
      for (int r = 0; r < 2; r++) {
        sum[r] += __shfl_xor_sync(~0u, sum[r], 1);
        sum[r] += __shfl_xor_sync(~0u, sum[r], 2);
        const uint32_t row = first_row + 8 * r, token = row / group, head = row - token * group;
        if (ANY) sum[r] += exponential_of_sink(p.scores, kv_head * group + head, top[r] * to_log2);
        const float inverse = 1.f / sum[r];
        if (token >= tile.rows) continue;
        bf16* out =
            p.out +
            (static_cast<uint64_t>(tile.first_row + token) * p.q_heads + kv_head * group + head) *
                D +
            2 * t;
#pragma unroll
        for (int i = 0; i < D / 8; i++)
          *reinterpret_cast<uint32_t*>(out + 8 * i) =
              pack_bf16(o[4 * i + 2 * r] * inverse, o[4 * i + 2 * r + 1] * inverse);
      }
    }
    if (warpgroup == 0) named_barrier_sync(kTurn, kWarpgroups * 128);  // the turn that nobody took
  }

  // Values of the last sub-record past the sequence's end are anything, NaN too: zeros instead.
  // Both warpgroups together: neither may read what the other has yet to clear, nor write what it
  // reads.
  __device__ __forceinline__ void clear_tail(uint32_t warpgroup, uint32_t stage,
                                             uint32_t kv_end) const {
    const uint32_t first = kv_end % kSubBlockTokens;
    uint8_t* const record =
        shared + kValues + stage * kSide + kv_end % kKeys / kSubBlockTokens * kRecord;
    for (uint32_t i = warpgroup * 128 + threadIdx.x % 128; i < kRecord / 16;
         i += kWarpgroups * 128) {
      if (i / 8 % kSubBlockTokens >= first)
        reinterpret_cast<uint4*>(record)[i] = make_uint4(0, 0, 0, 0);
    }
    fence_async_proxy();
    named_barrier_sync(kTail, kWarpgroups * 128);
  }
};

#endif

}  // namespace ebb
