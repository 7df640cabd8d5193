// Rings of decode attention over shrunk blocks: how chunks (decode_pieces.cuh) come to a warp's
// stages in shared memory, and how it waits for them. Each way has
//   prepare()           once, by a lane for each ring, before a CTA-wide barrier give()
//   what the giving warp does, if there is one fill()              has the first stages filled, at
//   least one of them, if that is this warp's to do wait(), release()   until the next stage is
//   full; done with it wait_for_second()   until the one after it is full as well fence_writes()
//   after a warp has written to a stage itself
#pragma once
#include "decode_pieces.cuh"

namespace ebb {

template <int D, int STAGES, int SETS, Way WAY, bool POLAR, bool ANY>
struct Rings;

// A warp that does nothing else has the copy engine bring chunks, which count on a barrier for each
// stage.
template <int D, int STAGES, int SETS, bool POLAR, bool ANY>
struct Rings<D, STAGES, SETS, Way::kBulk, POLAR, ANY>
    : MixedPieces<D, STAGES, SETS, Way::kBulk, POLAR, ANY> {
  using Base = MixedPieces<D, STAGES, SETS, Way::kBulk, POLAR, ANY>;
  using Base::bytes_of, Base::from_of, Base::in_queue, Base::part_of_chunk, Base::rest_of;
  using Base::kDivided, Base::kHowShift, Base::kNoMore, Base::kRow, Base::kRows, Base::kStage,
      Base::kWarps;
  using Base::lane, Base::p, Base::params, Base::ring_of, Base::stage, Base::stage_at, Base::state,
      Base::state_of, Base::taken, Base::warp;

  __device__ __forceinline__ explicit Rings(const MixedDecodeParams& params) : Base(params) {}

  __device__ __forceinline__ static uint32_t full(uint8_t* ring, uint32_t s) {
    return smem_address(state_of(ring).full + s);
  }

  __device__ __forceinline__ void prepare() const {
    for (uint32_t s = 0; s < STAGES; s++) mbarrier_init(full(ring_of(warp), s), 1);
    mbarrier_init_fence();
  }

  // What a warp does for its team until there is no more: each lane has the ring of the warp of its
  // number filled.
  __device__ __forceinline__ void give() const {
    wait_for_previous();
    uint8_t* const ring = ring_of(min(lane, kWarps - 1));
    auto& state = state_of(ring);
    const uint8_t* const arena = p.pages.arena;
    bool more = lane < kWarps;
    uint32_t given = 0;
#pragma unroll 1
    while (__any_sync(~0u, more)) {
      bool can = more && load_turn(smem_address(&state.found)) != given;
#pragma unroll
      for (uint32_t w = 0; w < Base::kPair; w++)
        can = can && given - load_turn(smem_address(&state.taken[w])) < STAGES;
      if (!__any_sync(~0u, can)) {
        __nanosleep(20);
        continue;
      }
      if (can) {
        const uint4 chunk = *reinterpret_cast<const uint4*>(in_queue(ring, given));
        const uint32_t s = given % STAGES, how = chunk.y >> kHowShift, barrier = full(ring, s),
                       dst = smem_address(ring) + s * kStage;
        state.info[s] = chunk.w;
        given++;
        const uint2 at = make_uint2(chunk.x, chunk.y);
        if (how == kNoMore) {
          mbarrier_arrive(barrier);  // It stays the last.
          more = false;
        } else {
          mbarrier_arrive_expect(barrier, bytes_of(at.y));
          if (how == kRows) {
            tensor_copy_3d(dst, &params.records, 0, static_cast<int32_t>(from_of(at) / (kRow / 16)),
                           0, barrier, params.policy);
          } else {
            bulk_copy(dst, arena + from_of(at) * 16, part_of_chunk(at.y), barrier, params.policy);
            if (how == kDivided)
              bulk_copy(dst + part_of_chunk(at.y), arena + rest_of(at.y, chunk.z) * 16,
                        bytes_of(at.y) - part_of_chunk(at.y), barrier, params.policy);
          }
        }
        set_turn(smem_address(&state.given), given);  // The chunk has been read.
      }
      __syncwarp();
    }
  }

  __device__ __forceinline__ void fill() const {}

  __device__ __forceinline__ uint8_t* wait() const {
    mbarrier_wait(full(ring_of(warp), stage()), taken / STAGES & 1);
    return stage_at(stage());
  }
  // All chunks of a record are found at once, so it is on its way.
  __device__ __forceinline__ uint8_t* wait_for_second() const {
    const uint32_t next = taken + 1, s = next % STAGES;
    mbarrier_wait(full(ring_of(warp), s), next / STAGES & 1);
    return stage_at(s);
  }
  __device__ __forceinline__ void release() {
    __syncwarp();
    taken++;
    if (lane == 0) set_turn(smem_address(&state().taken[this->mate]), taken);
  }
  // What this warp wrote is overwritten by the copy engine.
  __device__ __forceinline__ static void fence_writes() { fence_async_proxy(); }
};

// Each lane copies its share of a chunk, in a group of copies for each stage.
template <int D, int STAGES, int SETS, bool POLAR, bool ANY>
struct Rings<D, STAGES, SETS, Way::kRing, POLAR, ANY>
    : MixedPieces<D, STAGES, SETS, Way::kRing, POLAR, ANY> {
  using Base = MixedPieces<D, STAGES, SETS, Way::kRing, POLAR, ANY>;
  using Base::kHowShift, Base::kNoMore, Base::kRingBytes, Base::kRow, Base::kRows, Base::kStage;
  static_assert(Base::kTeams == 1);
  using Base::bytes_of, Base::from_of, Base::in_queue, Base::part_of_chunk, Base::rest_of,
      Base::state_of, Base::word;
  using Base::stage, Base::stage_at, Base::taken;

  uint32_t given;  // chunks; the same for all lanes

  __device__ __forceinline__ explicit Rings(const MixedDecodeParams& params)
      : Base(params), given(0) {}

  __device__ __forceinline__ void prepare() const {}
  __device__ __forceinline__ void give() const {}

  // The chunks given after. Called, not inlined: warps that are in different formats share one
  // instruction cache.
  __device__ __noinline__ static uint32_t give(uint32_t taken, uint32_t given) {
    EBB_DYNAMIC_SHARED(shared);
    const uint32_t lane = threadIdx.x % 32;
    uint8_t* const ring = shared + threadIdx.x / 32 * kRingBytes;
    auto& state = state_of(ring);
    const uint32_t found_at = smem_address(&state.found);
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
      const uint8_t* const chunk = in_queue(ring, given);
      const uint2 at = *reinterpret_cast<const uint2*>(chunk);
      const uint32_t s = given % STAGES, how = at.y >> kHowShift;
      if (lane == 0) state.info[s] = word(chunk, 3);
      if (how != kNoMore) {
        const uint32_t bytes = bytes_of(at.y), part = part_of_chunk(at.y);
        const uint8_t *const head = arena + from_of(at) * 16, *const rest =
                                                                  arena +
                                                                  rest_of(at.y, word(chunk, 2)) *
                                                                      16 -
                                                                  part;
        const uint32_t dst = smem_address(ring) + s * kStage;
        auto copy = [&](auto place) {
#pragma unroll 4
          for (uint32_t i = 16 * lane; i < bytes; i += 512)
            cp_async16(dst + place(i), (i < part ? head : rest) + i);
        };
        if (how == kRows)
          copy([](uint32_t i) { return Base::row_offset(i / kRow, i % kRow / 16); });
        else
          copy([](uint32_t i) { return i; });
      }
      cp_async_commit();  // Of what stays the last, no copies.
      if (given % 2 == 1) {
        __syncwarp();  // The chunk has been read.
        if (lane == 0) set_turn(smem_address(&state.given), given + 1);
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
