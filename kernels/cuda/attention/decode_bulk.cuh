// Decode attention over paged 16-bit KV for sm_90: the work of decode.cuh, streamed by the copy
// engine.
//
// One warp of the CTA produces: it looks frames up and has the copy engine bring chunks of kChunk
// tokens, K and V one after the other, into a ring of stages; one bulk tensor copy brings a whole
// 16-token record. kWarps warps consume. For the scores warp w owns tile w (16 tokens) of the
// chunk; for the output it owns channels 16 w .. of all tokens, so nothing is merged between warps:
// they exchange maxima and probabilities through shared memory, two barriers a chunk.
//
// Units are handed out by a counter, in the order planned: large ones first. A unit's sums run in
// the order of its tokens; a second kernel merges the units of a sequence in their order. So a
// result does not depend on the batch nor on which CTA did what.
//
// Where registers allow, another warp takes the heads of Q, K and V as their projection left them
// and finishes them (heads.cuh), a unit ahead: queries to shared memory, a sequence's newest K and
// V to their page, before the copy engine reads that. The warp that produces has no time for it:
// what it waits for memory lacks in requests. Of a CTA's first unit, which nothing is ahead of, the
// consumers finish the queries, a head each: one warp takes 5 us for eight heads.
#pragma once
#include "../common/kernel.cuh"
#include "../common/pages.cuh"
#include "../common/tensor_copy.cuh"
#include "../ops/heads.cuh"
#include "decode.cuh"

namespace ebb {

struct alignas(64) BulkDecodeParams {
  // the arena as 3-D: 64 channels, rows of head_dim channels, halves; box: one record
  TensorMap records;
  DecodeParams decode;
  HeadParams heads;  // its qkv null: Q lies in `q`, K and V in their pages
  uint64_t policy;   // L2 policy of records
  ScoreParams scores;
  uint32_t reserved[10];
};
static_assert(sizeof(BulkDecodeParams) == 384);

// FINISHES: has a warp to finish heads. ANY: see scores.cuh.
template <int D, int STAGES, bool FINISHES, bool ANY>
struct BulkDecode {
  static constexpr int kWarps = D / 16;  // consumers
  static constexpr int kThreads = (kWarps + (FINISHES ? 2 : 1)) * 32;
  static constexpr int kHeads = 8;
  static constexpr int kTiles = kWarps;  // of a chunk
  static constexpr int kChunk = kTiles * kSubBlockTokens;
  static constexpr int kRecord = kSubBlockTokens * D * 2;
  static constexpr int kStage = kTiles * kRecord;  // one side of a chunk
  // Units under way: those of the chunks in the ring, the one being consumed and the one being
  // opened.
  static constexpr int kItems = STAGES / 2 + 2;
  static constexpr int kMaxOffset = STAGES * kStage;               // float [2][kWarps][8]
  static constexpr int kSumOffset = kMaxOffset + 2 * kWarps * 32;  // float [2][kWarps][8]
  // uint2 [2][kTiles][32]: B fragments
  static constexpr int kProbOffset = kSumOffset + 2 * kWarps * 32;
  static constexpr int kQueryOffset = kProbOffset + 2 * kTiles * 256;         // bf16 [kItems][8][D]
  static constexpr int kItemOffset = kQueryOffset + kItems * kHeads * D * 2;  // Item [kItems]
  static constexpr int kFullOffset = kItemOffset + kItems * 32;               // u64 [STAGES]
  static constexpr int kEmptyOffset = kFullOffset + STAGES * 8;               // u64 [STAGES]
  // u64 [kItems]: queries have arrived
  static constexpr int kReadyOffset = kEmptyOffset + STAGES * 8;
  static constexpr int kAsks = FINISHES ? kItems : 0;
  // u64 [kAsks]: somebody asks for the heads of `wanted`
  static constexpr int kAskedOffset = kReadyOffset + kItems * 8;
  // u64 [kAsks]: newest K and V are in their pages
  static constexpr int kAppendedOffset = kAskedOffset + kAsks * 8;
  static constexpr int kWantedOffset = kAppendedOffset + kAsks * 8;  // u32 [kAsks]: items
  static constexpr int kSharedBytes = kWantedOffset + (kAsks + 1) / 2 * 8;
  static constexpr uint32_t kNone = ~0u;

  // What consumers know of a unit.
  struct Item {
    uint32_t unit, unit_head, row, begin, end, split, splits, partial;
  };
  static_assert(sizeof(Item) == 32);

  const TensorMap* map;
  const DecodeParams& p;
  const HeadParams& projected;
  const uint64_t& policy;
  const ScoreParams& scores;
  uint8_t* shared;
  uint32_t base;
  uint32_t lane, warp;
  uint32_t unit_heads, groups, total;
  uint32_t stage, phase;

  __device__ __forceinline__ BulkDecode(const BulkDecodeParams& params, uint8_t* sm)
      : map(&params.records),
        p(params.decode),
        projected(params.heads),
        policy(params.policy),
        scores(params.scores),
        shared(sm),
        base(smem_address(sm)),
        lane(threadIdx.x % 32),
        warp(threadIdx.x / 32),
        stage(0),
        phase(0) {
    groups = (p.q_heads / p.kv_heads + kHeads - 1) / kHeads;
    unit_heads = p.kv_heads * groups;
    total = __ldg(p.unit_count) * unit_heads;
  }

  __device__ __forceinline__ uint32_t full(uint32_t s) const { return base + kFullOffset + s * 8; }
  __device__ __forceinline__ uint32_t empty(uint32_t s) const {
    return base + kEmptyOffset + s * 8;
  }
  __device__ __forceinline__ uint32_t ready(uint32_t i) const {
    return base + kReadyOffset + i * 8;
  }
  __device__ __forceinline__ uint32_t asked(uint32_t i) const {
    return base + kAskedOffset + i * 8;
  }
  __device__ __forceinline__ uint32_t appended(uint32_t i) const {
    return base + kAppendedOffset + i * 8;
  }
  // Head `h` of a slot's queries.
  __device__ __forceinline__ bf16* query(uint32_t slot, uint32_t h) const {
    return reinterpret_cast<bf16*>(shared + kQueryOffset) + (slot * kHeads + h) * D;
  }
  __device__ __forceinline__ uint32_t* wanted(uint32_t i) const {
    return reinterpret_cast<uint32_t*>(shared + kWantedOffset) + i;
  }
  // Whether heads are finished here.
  __device__ __forceinline__ bool finishes() const { return FINISHES && projected.qkv != nullptr; }
  __device__ __forceinline__ uint32_t first_head(uint32_t unit_head) const {
    return unit_head / groups * (p.q_heads / p.kv_heads) + unit_head % groups * kHeads;
  }
  __device__ __forceinline__ uint32_t heads(uint32_t unit_head) const {
    return min(p.q_heads / p.kv_heads - unit_head % groups * kHeads, static_cast<uint32_t>(kHeads));
  }
  __device__ __forceinline__ void advance() {
    if (++stage == STAGES) {
      stage = 0;
      phase ^= 1;
    }
  }

  __device__ __forceinline__ void run() {
    if (threadIdx.x == kWarps * 32) prefetch_tensor_map(map);
    if (threadIdx.x == 0) {
      for (int s = 0; s < STAGES; s++) {
        mbarrier_init(full(s), 1);
        mbarrier_init(empty(s), kWarps);
      }
      for (int i = 0; i < kItems; i++) mbarrier_init(ready(i), finishes() ? 32 : 1);
      for (int i = 0; i < kAsks; i++) {
        mbarrier_init(asked(i), 1);
        mbarrier_init(appended(i), 1);
      }
      mbarrier_init_fence();
    }
    __syncthreads();
    let_next_start();
    if (warp == kWarps)
      produce();
    else if (warp < kWarps)
      consume();
    else if (finishes())
      finish_heads();
    // The last CTA leaves the counters as it found them.
    if (threadIdx.x == kWarps * 32 && atomicInc(p.work + 1, gridDim.x - 1) == gridDim.x - 1)
      *p.work = 0;
  }

  // ---- producer ----

  struct Cursor {
    uint32_t item;  // >= total: none
    uint32_t unit, unit_head;
    uint4 a;  // row, first block, begin, end
    uint4 b;  // split, splits, partial, counter
    __device__ __forceinline__ uint32_t begin() const { return tiles_begin<ANY>(a.z); }
  };

  __device__ __forceinline__ Cursor look_up(uint32_t item) const {
    // Past the end the unit is one of an earlier step or zero, and nobody looks at it.
    Cursor c;
    c.item = item;
    c.unit = min(item / unit_heads, p.units_max - 1);
    c.unit_head = item % unit_heads;
    const uint4* d = reinterpret_cast<const uint4*>(&p.units[c.unit]);
    c.a = __ldg(d);
    c.b = __ldg(d + 1);
    return c;
  }

  // Chunks whose records the lanes look up at once, and the stages they take.
  static constexpr uint32_t kGroup = 32 / (2 * kTiles);
  static constexpr uint32_t kGroupTokens = kGroup * kChunk;

  // Row of the tensor where this lane's record of a group of chunks lies: of each chunk K's tiles,
  // then V's.
  __device__ __forceinline__ uint32_t record_row(const Cursor& c, uint32_t token) const {
    const uint32_t side = lane / kTiles % 2;
    token += lane / (2 * kTiles) * kChunk + lane % kTiles * kSubBlockTokens;
    if (token >= c.a.w) return 0;
    const RecordPlace place =
        record_place(p.pages, (p.layer * 2 + side) * p.kv_heads + c.unit_head / groups, kRecord);
    const uint32_t frame = sub_block_frame(p.pages, c.a.y, token / kSubBlockTokens, place.slot);
    return frame_row(p.pages, frame, place.offset, D * 2);
  }

  // Has a unit's queries copied to shared memory, if they are there to be copied.
  __device__ __forceinline__ void copy_queries(const Cursor& c, uint32_t slot) const {
    if (lane != 0 || finishes()) return;
    const uint32_t bytes = heads(c.unit_head) * D * 2;
    mbarrier_arrive_expect(ready(slot), bytes);
    bulk_copy(base + kQueryOffset + slot * kHeads * D * 2,
              p.q + static_cast<uint64_t>(c.a.x) * p.q_stride + first_head(c.unit_head) * D, bytes,
              ready(slot));
  }

  // Has the heads of an item finished, if there is one, its queries in a slot.
  __device__ __forceinline__ void ask(uint32_t item, uint32_t slot) const {
    if (lane != 0 || !finishes()) return;
    *wanted(slot) = item;
    mbarrier_arrive(asked(slot));
  }
  static __device__ __forceinline__ uint32_t after(uint32_t slot) {
    return slot + 1 == kItems ? 0 : slot + 1;
  }

  // Every look-up is under way long before its answer is needed: an item's number two items ahead,
  // its unit one item ahead, the places of its records one group of chunks ahead.
  __device__ __forceinline__ void produce() {
    bool waited = false;
    uint32_t slot = 0, filled = 0, taken = 0, turn = 0;
    ask(blockIdx.x, slot);
    Cursor c = look_up(blockIdx.x), next = c;
    uint32_t token = c.item < total ? c.begin() : 0;
    uint32_t row = c.item < total ? record_row(c, token) : 0;
    // Only queries and a sequence's newest token, which a unit's last group may hold, are written
    // by the kernel before this one; the counter may still be in use by an earlier launch.
    const auto go_on = [&] {
      wait_for_previous();
      waited = true;
      copy_queries(c, slot);
      if (lane == 0) taken = atomicAdd(p.work, 2) + gridDim.x;
      ask(taken, after(slot));
      next = look_up(__shfl_sync(~0u, taken, 0));
      taken++;
    };
#pragma unroll 1
    while (c.item < total) {
      const bool ends = token + kGroupTokens >= c.a.w;
      if (!waited && ends) go_on();
      uint32_t row_ahead = 0;
      if (!ends)
        row_ahead = record_row(c, token + kGroupTokens);
      else if (next.item < total)
        row_ahead = record_row(next, next.begin());
#pragma unroll
      for (uint32_t i = 0; i < kGroup; i++) {
        const uint32_t first = token + i * kChunk;
        if (first >= c.a.w) break;
        if (!waited && filled + 2 > STAGES) go_on();
        const uint32_t tiles = min((c.a.w - first + kSubBlockTokens - 1) / kSubBlockTokens,
                                   static_cast<uint32_t>(kTiles));
        if (finishes() && first + kChunk >= c.a.w) mbarrier_wait(appended(slot), turn);
#pragma unroll
        for (uint32_t side = 0; side < 2; side++) {
          if (filled == STAGES)
            mbarrier_wait(empty(stage), phase ^ 1);
          else
            filled++;
          if (lane == 0) {
            if (side == 0 && first == c.begin()) {
              uint4* item = reinterpret_cast<uint4*>(shared + kItemOffset + slot * sizeof(Item));
              item[0] = make_uint4(c.unit, c.unit_head, c.a.x, c.a.z);
              item[1] = make_uint4(c.a.w, c.b.x, c.b.y, c.b.z);
            }
            mbarrier_arrive_expect(full(stage), tiles * kRecord);
          }
          __syncwarp();
          const uint32_t tile = lane - (i * 2 + side) * kTiles;
          if (tile < tiles)
            tensor_copy_3d(base + stage * kStage + tile * kRecord, map, 0, row, 0, full(stage),
                           policy);
          advance();
        }
      }
      row = row_ahead;
      token += kGroupTokens;
      if (ends) {
        slot = after(slot);
        if (slot == 0) turn ^= 1;
        c = next;
        if (c.item < total) {
          token = c.begin();
          copy_queries(c, slot);
          ask(taken, after(slot));
          next = look_up(__shfl_sync(~0u, taken, 0));
          if (lane == 0) taken = atomicAdd(p.work, 1) + gridDim.x;
        }
      }
    }
    if (!waited) wait_for_previous();
    // The end: an item that is none.
    if (filled == STAGES) mbarrier_wait(empty(stage), phase ^ 1);
    if (lane == 0) {
      *reinterpret_cast<uint32_t*>(shared + kItemOffset + slot * sizeof(Item)) = kNone;
      mbarrier_arrive(full(stage));
    }
  }

  // ---- finisher ----

  // Finishes the heads of one item after the other, each while the one before it is being loaded.
  // The slot of its queries is free by then: there are two more slots than items that the ring can
  // hold.
  __device__ __forceinline__ void finish_heads() const {
    // Before it is waited for what the kernel before this one writes.
    if (projected.q_norm && lane * 64 < D) {
      prefetch_line(projected.q_norm + lane * 64);
      prefetch_line(projected.k_norm + lane * 64);
    }
    uint32_t slot = 0, turn = 0;
#pragma unroll 1
    for (;;) {
      mbarrier_wait(asked(slot), turn);
      const uint32_t item = *wanted(slot);
      if (item >= total) return;
      const Cursor c = look_up(item);
      const uint32_t row = c.a.x, kv_head = c.unit_head / groups, token = c.a.w - 1,
                     all = p.q_heads + 2 * p.kv_heads;
      bf16* to[2];
#pragma unroll
      for (uint32_t side = 0; side < 2; side++) {
        const RecordPlace place =
            record_place(p.pages, (p.layer * 2 + side) * p.kv_heads + kv_head, kRecord);
        const uint32_t frame = sub_block_frame(p.pages, c.a.y, token / kSubBlockTokens, place.slot);
        to[side] = reinterpret_cast<bf16*>(
            frame_address(p.pages, frame, place.offset + token % kSubBlockTokens * (D * 2)));
      }
      wait_for_previous();
      typename Head<D>::Angles angles;
      Head<D> k, v, q[kHeads];  // K and V of the sequence's last unit
      k.load(projected, row, p.q_heads + kv_head, all, lane);
      v.load(projected, row, p.q_heads + p.kv_heads + kv_head, all, lane);
      angles.load(projected, row, lane);
      const uint32_t count = heads(c.unit_head), first = first_head(c.unit_head);
#pragma unroll
      for (uint32_t h = 0; h < kHeads; h++) {
        if (h < count) q[h].load(projected, row, first + h, all, lane);
      }
      if (c.b.x + 1 == c.b.y) {
        k.finish(projected, p.q_heads + kv_head, projected.k_norm, &angles, lane, to[0]);
        v.finish(projected, p.q_heads + p.kv_heads + kv_head, nullptr, nullptr, lane, to[1]);
      }
      fence_async_proxy_global();
      __syncwarp();
      if (lane == 0) mbarrier_arrive(appended(slot));
      // Queries are finished while the newest keys are on their way.
      if (item != blockIdx.x) {
#pragma unroll
        for (uint32_t h = 0; h < kHeads; h++) {
          if (h < count)
            q[h].finish(projected, first + h, projected.q_norm, &angles, lane, query(slot, h));
        }
        mbarrier_arrive(ready(slot));  // each lane, which has written its part
      }
      slot = after(slot);
      if (slot == 0) turn ^= 1;
    }
  }

  // Finishes this warp's heads of the CTA's first item, if there is one.
  __device__ __forceinline__ void finish_first_queries() const {
    if (!finishes() || blockIdx.x >= total) return;
    const Cursor c = look_up(blockIdx.x);
    const uint32_t row = c.a.x, first = first_head(c.unit_head);
    typename Head<D>::Angles angles;
    angles.load(projected, row, lane);
#pragma unroll 1
    for (uint32_t h = warp; h < heads(c.unit_head); h += kWarps) {
      Head<D> q;
      q.load(projected, row, first + h, p.q_heads + 2 * p.kv_heads, lane);
      q.finish(projected, first + h, projected.q_norm, &angles, lane, query(0, h));
    }
    __syncwarp();
    if (lane < 32 / kWarps) mbarrier_arrive(ready(0));
  }

  // ---- consumers ----

  __device__ __forceinline__ void consumer_barrier() const { named_barrier_sync(1, kWarps * 32); }

  __device__ __forceinline__ void consume() {
    const uint32_t g = lane / 4, t = lane % 4;
    const uint32_t row8 = lane % 8, mat = lane / 8;
    const uint32_t k_offset = ((mat & 1) * 8 + row8) * 128 + (((mat >> 1) ^ row8) * 16);
    // This warp's 16 channels of V: half, and chunk pair within the half.
    const uint32_t v_offset =
        (warp / 4) * 2048 +
        ((((mat >> 1) * 8 + row8) * 128 + (((mat & 1) ^ row8) * 16)) ^ ((warp % 4) * 32));
    float* maxima = reinterpret_cast<float*>(shared + kMaxOffset);
    uint2* probs = reinterpret_cast<uint2*>(shared + kProbOffset);
    wait_for_previous();
    finish_first_queries();
    uint32_t slot = 0, slot_phase = 0, parity = 0, item_parity = 0;
#pragma unroll 1
    for (;;) {
      mbarrier_wait(full(stage), phase);
      const Item item = *reinterpret_cast<const Item*>(shared + kItemOffset + slot * sizeof(Item));
      if (item.unit == kNone) return;
      uint32_t q[D / 16][2];  // B operand: head g, channels 16s + 2t (+1) and + 8
      mbarrier_wait(ready(slot), slot_phase);
      const uint32_t* q_row =
          reinterpret_cast<const uint32_t*>(shared + kQueryOffset + (slot * kHeads + g) * D * 2);
      const bool is_head = g < heads(item.unit_head);
#pragma unroll
      for (int s = 0; s < D / 16; s++) {
#pragma unroll
        for (int r = 0; r < 2; r++) q[s][r] = is_head ? q_row[8 * s + 4 * r + t] : 0u;
      }
      if (++slot == kItems) {
        slot = 0;
        slot_phase ^= 1;
      }
      // O^T: channels 16 warp + g and + 8, heads 2t and 2t + 1; even and odd tiles
      float o[2][4] = {};
      float m0 = -INFINITY, m1 = -INFINITY, l0 = 0.f, l1 = 0.f;
#pragma unroll 1
      for (uint32_t token = tiles_begin<ANY>(item.begin); token < item.end; token += kChunk) {
        const uint32_t tiles = min((item.end - token + kSubBlockTokens - 1) / kSubBlockTokens,
                                   static_cast<uint32_t>(kTiles));
        if (token != tiles_begin<ANY>(item.begin)) mbarrier_wait(full(stage), phase);
        float x[4] = {-INFINITY, -INFINITY, -INFINITY, -INFINITY};
        if (warp < tiles) {
          const uint32_t k_tile = base + stage * kStage + warp * kRecord;
          float s0[4] = {}, s1[4] = {};
#pragma unroll
          for (int s = 0; s < D / 16; s += 2) {
            uint32_t a[4], b[4];
            ldmatrix_x4(a, k_tile + (s / 4) * 2048 + (k_offset ^ ((s % 4) * 32)));
            ldmatrix_x4(b, k_tile + (s / 4) * 2048 + (k_offset ^ ((s % 4 + 1) * 32)));
            mma_bf16(s0, a, q[s][0], q[s][1]);
            mma_bf16(s1, b, q[s + 1][0], q[s + 1][1]);
          }
#pragma unroll
          for (int i = 0; i < 4; i++) x[i] = (s0[i] + s1[i]) * p.scale_log2;
          if (ANY && scores.cap != 0.f) {
#pragma unroll
            for (int i = 0; i < 4; i++) x[i] = capped(scores, x[i]);
          }
          const uint32_t first = token + warp * kSubBlockTokens;
          if (ANY && first < item.begin) {
            if (first + g < item.begin) x[0] = x[1] = -INFINITY;
            if (first + g + 8 < item.begin) x[2] = x[3] = -INFINITY;
          }
          if (first + g >= item.end) x[0] = x[1] = -INFINITY;
          if (first + g + 8 >= item.end) x[2] = x[3] = -INFINITY;
        }
        __syncwarp();
        if (lane == 0) mbarrier_arrive(empty(stage));
        advance();
        float x0 = fmaxf(x[0], x[2]), x1 = fmaxf(x[1], x[3]);
#pragma unroll
        for (int k = 4; k < 32; k <<= 1) {
          x0 = fmaxf(x0, __shfl_xor_sync(~0u, x0, k));
          x1 = fmaxf(x1, __shfl_xor_sync(~0u, x1, k));
        }
        float* chunk_maxima = maxima + parity * kWarps * kHeads;
        if (g == 0)
          *reinterpret_cast<float2*>(chunk_maxima + warp * kHeads + 2 * t) = make_float2(x0, x1);
        consumer_barrier();
        x0 = m0;
        x1 = m1;
#pragma unroll
        for (int w = 0; w < kWarps; w++) {
          const float2 other = *reinterpret_cast<const float2*>(chunk_maxima + w * kHeads + 2 * t);
          x0 = fmaxf(x0, other.x);
          x1 = fmaxf(x1, other.y);
        }
        const float e0 = ex2(m0 - x0), e1 = ex2(m1 - x1);
        m0 = x0;
        m1 = x1;
        l0 *= e0;
        l1 *= e1;
#pragma unroll
        for (int h = 0; h < 2; h++) {
          o[h][0] *= e0;
          o[h][1] *= e1;
          o[h][2] *= e0;
          o[h][3] *= e1;
        }
        uint2* chunk_probs = probs + parity * kTiles * 32;
        if (warp < tiles) {
#pragma unroll
          for (int i = 0; i < 4; i++) x[i] = ex2(x[i] - (i % 2 ? m1 : m0));
          l0 += x[0] + x[2];
          l1 += x[1] + x[3];
          chunk_probs[warp * 32 + lane] = make_uint2(movmatrix_trans(pack_bf16(x[0], x[1])),
                                                     movmatrix_trans(pack_bf16(x[2], x[3])));
        }
        mbarrier_wait(full(stage), phase);
        const uint32_t v_chunk = base + stage * kStage;
        // Rows past the end hold anything, also NaN: they become zero.
        if (token + tiles * kSubBlockTokens > item.end && warp == tiles - 1) {
          const uint32_t valid = item.end - (token + warp * kSubBlockTokens);
          for (uint32_t i = valid * (D / 8) + lane; i < kSubBlockTokens * (D / 8); i += 32) {
            const uint32_t r = i / (D / 8), chunk = i % (D / 8);
            const uint32_t at = chunk / 8 * 2048 + r * 128 + chunk % 8 * 16;
            *reinterpret_cast<uint4*>(shared + stage * kStage + warp * kRecord + at) =
                make_uint4(0, 0, 0, 0);
          }
          fence_async_proxy();
        }
        consumer_barrier();
#pragma unroll
        for (int j = 0; j < kTiles; j++) {
          if (j >= tiles) break;
          uint32_t a[4];
          ldmatrix_x4_trans(a, v_chunk + j * kRecord + v_offset);
          const uint2 b = chunk_probs[j * 32 + lane];
          mma_bf16(o[j % 2], a, b.x, b.y);
        }
        __syncwarp();
        if (lane == 0) mbarrier_arrive(empty(stage));
        advance();
        parity ^= 1;
      }
      finish(item, item_parity, m0, m1, l0, l1, o);
      item_parity ^= 1;
    }
  }

  // Writes a unit's result, or its partial.
  __device__ __forceinline__ void finish(const Item& item, uint32_t item_parity, float m0, float m1,
                                         float l0, float l1, const float (&o)[2][4]) const {
    const uint32_t g = lane / 4, t = lane % 4;
    float* sums = reinterpret_cast<float*>(shared + kSumOffset) + item_parity * kWarps * kHeads;
#pragma unroll
    for (int k = 4; k < 32; k <<= 1) {
      l0 += __shfl_xor_sync(~0u, l0, k);
      l1 += __shfl_xor_sync(~0u, l1, k);
    }
    if (g == 0) *reinterpret_cast<float2*>(sums + warp * kHeads + 2 * t) = make_float2(l0, l1);
    consumer_barrier();
    l0 = l1 = 0.f;
#pragma unroll
    for (int w = 0; w < kWarps; w++) {
      const float2 other = *reinterpret_cast<const float2*>(sums + w * kHeads + 2 * t);
      l0 += other.x;
      l1 += other.y;
    }
    const uint32_t first = first_head(item.unit_head), count = heads(item.unit_head);
    const bool whole = item.splits == 1;
    if (ANY && whole) {
      if (2 * t < count) l0 += exponential_of_sink(scores, first + 2 * t, m0);
      if (2 * t + 1 < count) l1 += exponential_of_sink(scores, first + 2 * t + 1, m1);
    }
    const uint64_t partial = static_cast<uint64_t>(item.partial + item.split) * p.q_heads + first;
    const uint64_t out_row = static_cast<uint64_t>(item.row) * p.q_heads + first;
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const uint32_t h = 2 * t + i % 2, c = 16 * warp + g + i / 2 * 8;
      const float value = o[0][i] + o[1][i];
      if (h >= count) continue;
      if (whole)
        p.out[(out_row + h) * D + c] = __float2bfloat16(value / (i % 2 ? l1 : l0));
      else
        __stcg(&p.partial_o[(partial + h) * D + c], value);
    }
    if (!whole && warp == 0 && g == 0) {
      if (2 * t < count) __stcg(&p.partial_ml[partial + 2 * t], make_float2(m0, l0));
      if (2 * t + 1 < count) __stcg(&p.partial_ml[partial + 2 * t + 1], make_float2(m1, l1));
    }
  }
};

struct DecodeMergeParams {
  const DecodeRow* rows;
  const uint32_t* row_count;
  const float* partial_o;
  const float2* partial_ml;
  bf16* out;
  uint32_t q_heads;
  uint32_t reserved;
  ScoreParams scores;
};
static_assert(sizeof(DecodeMergeParams) == 72);

// Merges the units of a sequence: kParts warps (of 128 channels) a head, four channels a thread. A
// part takes every kParts-th unit in their order, and the parts add up in theirs. ANY: heads may
// have sinks.
template <int D, bool ANY>
__device__ __forceinline__ void merge_units(const DecodeMergeParams& p) {
  constexpr uint32_t kParts = 4, kLanes = D / 4, kHeads = 256 / (kParts * kLanes), kAtOnce = 8;
  __shared__ float4 shared_sum[kHeads][kParts][kLanes];
  __shared__ float2 shared_ml[kHeads][kParts];
  let_next_start();
  const uint32_t lane = threadIdx.x % kLanes, part = threadIdx.x / kLanes % kParts,
                 slot = threadIdx.x / (kLanes * kParts);
  const uint32_t head = blockIdx.x * kHeads + slot;
  const DecodeRow row =
      blockIdx.y < __ldg(p.row_count) ? p.rows[blockIdx.y] : DecodeRow{0, 1, 0, 0};
  wait_for_previous();
  if (row.splits == 1) return;
  float m = -INFINITY, l = 0.f;
  float4 sum = make_float4(0.f, 0.f, 0.f, 0.f);
  if (head < p.q_heads) {
    const float2* ml = p.partial_ml + static_cast<uint64_t>(row.partial) * p.q_heads + head;
    const float* o =
        p.partial_o + (static_cast<uint64_t>(row.partial) * p.q_heads + head) * D + lane * 4;
#pragma unroll 1
    for (uint32_t first = part; first < row.splits; first += kParts * kAtOnce) {
      float2 x[kAtOnce];
      float4 v[kAtOnce];
      float top = m;
#pragma unroll
      for (uint32_t i = 0; i < kAtOnce; i++) {
        const uint32_t s = first + i * kParts;
        const bool is = s < row.splits;
        x[i] = is ? __ldcg(&ml[s * p.q_heads]) : make_float2(-INFINITY, 0.f);
        v[i] = is ? __ldcg(reinterpret_cast<const float4*>(o + static_cast<uint64_t>(s) *
                                                                   p.q_heads * D))
                  : make_float4(0.f, 0.f, 0.f, 0.f);
      }
#pragma unroll
      for (uint32_t i = 0; i < kAtOnce; i++) top = fmaxf(top, x[i].x);
      const float before = ex2(m - top);
      m = top;
      l *= before;
      sum = make_float4(sum.x * before, sum.y * before, sum.z * before, sum.w * before);
#pragma unroll
      for (uint32_t i = 0; i < kAtOnce; i++) {
        const float scale = ex2(x[i].x - m);
        l += scale * x[i].y;
        sum.x += scale * v[i].x;
        sum.y += scale * v[i].y;
        sum.z += scale * v[i].z;
        sum.w += scale * v[i].w;
      }
    }
  }
  shared_sum[slot][part][lane] = sum;
  if (lane == 0) shared_ml[slot][part] = make_float2(m, l);
  __syncthreads();
  if (part != 0 || head >= p.q_heads) return;
  float top = m;
#pragma unroll
  for (uint32_t i = 1; i < kParts; i++) top = fmaxf(top, shared_ml[slot][i].x);
  l = 0.f;
  sum = make_float4(0.f, 0.f, 0.f, 0.f);
#pragma unroll
  for (uint32_t i = 0; i < kParts; i++) {
    const float2 x = shared_ml[slot][i];
    const float4 v = shared_sum[slot][i][lane];
    const float scale = ex2(x.x - top);
    l += scale * x.y;
    sum.x += scale * v.x;
    sum.y += scale * v.y;
    sum.z += scale * v.z;
    sum.w += scale * v.w;
  }
  if (ANY) l += exponential_of_sink(p.scores, head, top);
  const uint2 packed = make_uint2(pack_bf16(sum.x / l, sum.y / l), pack_bf16(sum.z / l, sum.w / l));
  *reinterpret_cast<uint2*>(p.out + (static_cast<uint64_t>(row.row) * p.q_heads + head) * D +
                            lane * 4) = packed;
}

}  // namespace ebb
