// Rings of decode attention over shrunk blocks: how chunks (decode_pieces.cuh) come to a warp's stages in shared memory, and how it waits
// for them. Each way has
//   prepare()           once, by each warp that computes, before a CTA-wide barrier
//   fill()              has stages that are free filled, as far as chunks have been found, but one of them at any rate
//   wait(), release()   until the next stage is full; done with it
//   wait_for_second()   until the one after it is full as well
//   fence_writes()      after a warp has written to a stage itself
#pragma once
#include "decode_pieces.cuh"

namespace ebb {

template <int D, int STAGES, int SETS, Way WAY, bool POLAR>
struct Rings;

// One lane has the copy engine bring chunks, which count on a barrier for each stage.
template <int D, int STAGES, int SETS, bool POLAR>
struct Rings<D, STAGES, SETS, Way::kBulk, POLAR> : MixedPieces<D, STAGES, SETS, Way::kBulk, POLAR> {
  using Base = MixedPieces<D, STAGES, SETS, Way::kBulk, POLAR>;
  using Base::kFullOffset, Base::kGivenOffset, Base::kFoundOffset, Base::kInfoOffset, Base::kNextOffset;
  using Base::kNone, Base::kPaddedRow, Base::kRecord, Base::kRow, Base::kStage, Base::kWarps;
  using Base::bytes_of, Base::from_of, Base::in_queue, Base::part_of_chunk, Base::rest_of, Base::word;
  using Base::lane, Base::shared, Base::stage, Base::stage_at, Base::taken, Base::warp;

  __device__ __forceinline__ explicit Rings(const MixedDecodeParams& params) : Base(params) {}

  __device__ __forceinline__ uint32_t full(uint32_t s) const { return smem_address(shared + kFullOffset) + (warp * STAGES + s) * 8; }

  __device__ __forceinline__ void prepare() const {
    if (lane != 0) return;
    for (uint32_t s = 0; s < STAGES; s++) mbarrier_init(full(s), 1);
    mbarrier_init_fence();
    reinterpret_cast<uint32_t*>(shared + kNextOffset)[warp] = 0;
  }

  // Lane 0. Called, not inlined: warps that are in different formats share one instruction cache.
  __device__ __noinline__ static void give(uint32_t taken) {
    const uint32_t team = Base::computing_team(), warp = threadIdx.x / 32 - team * kWarps;
    uint8_t* const shared = Base::shared_of(team);
    uint32_t* const next = reinterpret_cast<uint32_t*>(shared + kNextOffset) + warp;
    uint32_t given = *next;
#pragma unroll 1
    while (given - taken < STAGES) {
      const uint32_t found_at = smem_address(shared + kFoundOffset) + 4 * warp;
      if (load_turn(found_at) == given) {
        if (given != taken) return;
        wait_for_more(found_at, given);
      }
      const uint8_t* const chunk = in_queue(shared, warp, given);
      const uint32_t of_warp = warp * STAGES + given % STAGES, barrier = smem_address(shared + kFullOffset) + of_warp * 8;
      const uint32_t what = word(chunk, 3);
      reinterpret_cast<uint32_t*>(shared + kInfoOffset)[of_warp] = what;
      given++;
      *next = given;
      if ((what & 0xffff) == kNone) {
        mbarrier_arrive(barrier);  // It stays the last.
        continue;
      }
      const uint2 at = *reinterpret_cast<const uint2*>(chunk);
      const uint32_t format = what >> (what >> 31 ? 20 : 16) & 15;
      mbarrier_arrive_expect(barrier, bytes_of(at.y));
      const uint32_t dst = smem_address(shared) + of_warp * kStage;
      const auto& arena = Base::arena();
      if (format == kTile16) {
        tensor_copy_3d(dst, arena.records, 0, static_cast<int32_t>(from_of(at) / (kRow / 16)), 0, barrier);
      } else if (format == kF16) {
        copy_rows(at, word(chunk, 2), dst, barrier);
      } else {
        bulk_copy(dst, arena.bytes + from_of(at) * 16, part_of_chunk(at.y), barrier);
        if (part_of_chunk(at.y) < bytes_of(at.y)) bulk_copy(dst + part_of_chunk(at.y), arena.bytes + rest_of(at.y, word(chunk, 2)) * 16, bytes_of(at.y) - part_of_chunk(at.y), barrier);
      }
      // The chunk has been read.
      if (given % 4 == 0) set_turn(smem_address(shared + kGivenOffset) + 4 * warp, given);
    }
  }

  // 16 rows of 16 bit, which may go on in a second frame, to padded ones.
  __device__ __forceinline__ static void copy_rows(uint2 from, uint32_t z, uint32_t dst, uint32_t barrier) {
    const uint32_t part = part_of_chunk(from.y);
    const uint8_t* const arena = Base::arena().bytes;
    const uint8_t *head = arena + from_of(from) * 16, *const tail = arena + rest_of(from.y, z) * 16;
    if (part == kRecord) {
#pragma unroll 4
      for (uint32_t at = 0; at < kRecord; at += kRow, dst += kPaddedRow, head += kRow) bulk_copy(dst, head, kRow, barrier);
      return;
    }
#pragma unroll 1
    for (uint32_t at = 0; at < kRecord; at += kRow, dst += kPaddedRow) {
      const uint32_t here = at >= part ? 0 : min(kRow, part - at);
      if (here > 0) bulk_copy(dst, head + at, here, barrier);
      if (here < kRow) bulk_copy(dst + here, tail + at + here - part, kRow - here, barrier);
    }
  }

  __device__ __forceinline__ void fill() const {
    if (lane == 0) give(taken);
    __syncwarp();
  }

  __device__ __forceinline__ uint8_t* wait() const {
    mbarrier_wait(full(stage()), taken / STAGES & 1);
    return stage_at(stage());
  }
  // All chunks of a record are found at once, so it is on its way.
  __device__ __forceinline__ uint8_t* wait_for_second() const {
    const uint32_t next = taken + 1, s = next % STAGES;
    mbarrier_wait(full(s), next / STAGES & 1);
    return stage_at(s);
  }
  __device__ __forceinline__ void release() {
    __syncwarp();
    if (lane == 0) give(taken + 1);
    __syncwarp();
    taken++;
  }
  // What this warp wrote is overwritten by the copy engine.
  __device__ __forceinline__ static void fence_writes() { fence_async_proxy(); }
};

// Each lane copies its share of a chunk, in a group of copies for each stage.
template <int D, int STAGES, int SETS, bool POLAR>
struct Rings<D, STAGES, SETS, Way::kRing, POLAR> : MixedPieces<D, STAGES, SETS, Way::kRing, POLAR> {
  using Base = MixedPieces<D, STAGES, SETS, Way::kRing, POLAR>;
  using Base::kFoundOffset, Base::kGivenOffset, Base::kInfoOffset, Base::kNone, Base::kRow, Base::kStage;
  static_assert(Base::kTeams == 1);
  using Base::bytes_of, Base::from_of, Base::in_queue, Base::part_of_chunk, Base::rest_of, Base::word;
  using Base::lane, Base::shared, Base::stage, Base::stage_at, Base::taken, Base::warp;

  uint32_t given;  // chunks; the same for all lanes

  __device__ __forceinline__ explicit Rings(const MixedDecodeParams& params) : Base(params), given(0) {}

  __device__ __forceinline__ void prepare() const {}

  // The chunks given after. Called, not inlined: warps that are in different formats share one instruction cache.
  __device__ __noinline__ static uint32_t give(uint32_t taken, uint32_t given) {
    uint8_t* const shared = Base::shared_of(0);
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const uint32_t found_at = smem_address(shared + kFoundOffset) + 4 * warp;
    const uint8_t* const arena = Base::arena().bytes;
    uint32_t found = given;
#pragma unroll 1
    for (; given - taken < STAGES; given++) {
      if (found == given) {
        if (lane == 0) {
          if (given == taken) wait_for_more(found_at, given);
          found = load_turn(found_at);
        }
        found = __shfl_sync(~0u, found, 0);
        __syncwarp();  // What that lane may read, all may.
        if (found == given) break;
      }
      const uint8_t* const chunk = in_queue(shared, warp, given);
      const uint32_t of_warp = warp * STAGES + given % STAGES, what = word(chunk, 3);
      if (lane == 0) reinterpret_cast<uint32_t*>(shared + kInfoOffset)[of_warp] = what;
      if ((what & 0xffff) != kNone) {
        const uint2 at = *reinterpret_cast<const uint2*>(chunk);
        const uint32_t format = what >> (what >> 31 ? 20 : 16) & 15, bytes = bytes_of(at.y), part = part_of_chunk(at.y);
        const uint8_t *const head = arena + from_of(at) * 16, *const rest = arena + rest_of(at.y, word(chunk, 2)) * 16 - part;
        const uint32_t dst = smem_address(shared) + of_warp * kStage;
        auto copy = [&](auto place) {
#pragma unroll 4
          for (uint32_t i = 16 * lane; i < bytes; i += 512) cp_async16(dst + place(i), (i < part ? head : rest) + i);
        };
        if (format == kTile16)
          copy([](uint32_t i) { return Base::template row_offset<true>(i / kRow, i % kRow / 16); });
        else if (format == kF16)
          copy([](uint32_t i) { return Base::template row_offset<false>(i / kRow, i % kRow / 16); });
        else
          copy([](uint32_t i) { return i; });
      }
      cp_async_commit();  // Of what stays the last, no copies.
      if (given % 4 == 3) {
        __syncwarp();  // The chunk has been read.
        if (lane == 0) set_turn(smem_address(shared + kGivenOffset) + 4 * warp, given + 1);
      }
    }
    return given;
  }

  __device__ __forceinline__ void fill() { given = give(taken, given); }

  __device__ __forceinline__ uint8_t* wait() const {
    if (given - taken == STAGES)
      cp_async_wait<STAGES - 1>();
    else
      cp_async_wait<0>();
    __syncwarp();
    return stage_at(stage());
  }
  // All chunks of a record are found at once, so it is on its way.
  __device__ __forceinline__ uint8_t* wait_for_second() const {
    static_assert(STAGES == 2);
    cp_async_wait<0>();
    __syncwarp();
    return stage_at((taken + 1) % STAGES);
  }
  __device__ __forceinline__ void release() {
    __syncwarp();
    taken++;
    fill();
  }
  // `release` orders them before the copies that follow.
  __device__ __forceinline__ static void fence_writes() {}
};

}  // namespace ebb
