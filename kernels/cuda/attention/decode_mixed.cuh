// Decode attention over pages of any format: every block of a sequence in the format that it has
// shrunk to (decode_pieces.cuh has units and pieces, decode_rings.cuh brings them).
//
// S^T = K Q^T and O^T = V^T P^T on tensor cores. Zeros never meet codes: with keys they are
// products of their own, with values a sum per lane. A block is the work of a warp
// (decode_blocks.cuh), or of two where a unit has sixteen columns (decode_wide.cuh).
//
// A lane (g, t) has head t of each set: of keys 16 i + g and + 8, and of channels 16 i + g and + 8
// of the result, where i is a row tile, or of a pair of warps every other one. The parts of a unit
// merge in the order of its slots, and a second kernel merges the units of a sequence in theirs
// (decode_bulk.cuh). So a result depends on the sequence's own length and formats alone.
#pragma once
#include "../common/registers.cuh"
#include "decode_blocks.cuh"
#include "decode_wide.cuh"

namespace ebb {

template <int D, int STAGES, int SETS, Way WAY, bool POLAR, bool ANY>
struct Blocks : MixedBlocks<D, STAGES, SETS, WAY, POLAR, ANY> {
  using MixedBlocks<D, STAGES, SETS, WAY, POLAR, ANY>::MixedBlocks;
};
template <int D, int STAGES, Way WAY, bool POLAR, bool ANY>
struct Blocks<D, STAGES, 4, WAY, POLAR, ANY> : WideBlocks<D, STAGES, 4, WAY, POLAR, ANY> {
  using WideBlocks<D, STAGES, 4, WAY, POLAR, ANY>::WideBlocks;
};

template <int D, int STAGES, int SETS, Way WAY, bool POLAR, bool ANY>
struct MixedDecode : Blocks<D, STAGES, SETS, WAY, POLAR, ANY> {
  using Base = Blocks<D, STAGES, SETS, WAY, POLAR, ANY>;
  using Base::attend_block, Base::attend_tile, Base::begin, Base::bring_queries, Base::brought,
      Base::fill, Base::finish, Base::gives, Base::give, Base::place_of_queries, Base::produce,
      Base::reset, Base::shift_of, Base::stage, Base::state, Base::wait;
  using Base::computes, Base::lane, Base::mate, Base::team, Base::warp;
  using Base::kPair, Base::kUnits, Base::kWarps;
  using typename Base::Place;

  __device__ __forceinline__ explicit MixedDecode(const MixedDecodeParams& params) : Base(params) {}

  __device__ __forceinline__ void consume() {
    const uint32_t index = warp * kPair + mate;
    const Place place = index < kUnits ? place_of_queries(index) : Place{0, 0};
    wait_for_previous();
    // Before the warp waits for the first pieces to be found.
    if (index < kUnits) bring_queries(index, place);
    fill();
    named_barrier_sync(1 + team, kWarps * kPair * 32);
    reset();
#pragma unroll 1
    for (;;) {
      lane = computed_here(lane);
      wait();
      const uint32_t what = state().info[stage()], ordinal = state().ordinal[mate];
      if ((what & 0xffff) != ordinal) {
        if (!finish(ordinal, (warp + kWarps - *shift_of(ordinal)) % kWarps)) return;
        reset();
        if (lane == 0) state().ordinal[mate] = ordinal + 1;
        __syncwarp();
        wait_for_value(brought(ordinal + 1), ordinal + 1);
        continue;
      }
      const uint32_t slot = ordinal % kUnits, format = what >> 16 & 15;
      if (format == kTile16)
        attend_tile(slot, what >> 24 & 31, Base::hidden_of_tile(what));
      else
        attend_block(slot, format);
    }
  }

  // Each kind of warp finds out anew what it is, of which there is no need to keep anything.
  __device__ __forceinline__ static void run(const MixedDecodeParams& params) {
    MixedDecode(params).begin();
    if (computes()) {
      if (WAY == Way::kBulk) registers_grow<Base::kComputingRegisters>();
      MixedDecode(params).consume();
      return;
    }
    if (WAY == Way::kBulk) registers_shrink<Base::kOtherRegisters>();
    if (gives())
      MixedDecode(params).give();
    else
      MixedDecode(params).produce();
  }
};

}  // namespace ebb

// Of head_dim D, for up to 4 * SETS pairs of a row and a query head; of sixteen there are half as
// many rings, of three stages and not two. For a device without the copy engine, to which the host
// gives no kernel that uses it, there is nothing to compile of one.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
#define EBB_DECODE_MIXED_BULK(NAME, D, SETS, POLAR, ANY) \
  extern "C" __global__ void NAME(const __grid_constant__ ebb::MixedDecodeParams p) { __trap(); }
#else
#define EBB_DECODE_MIXED_BULK(NAME, D, SETS, POLAR, ANY)                                         \
  EBB_KERNEL_OF_REGISTERS(                                                                       \
      NAME, ebb::MixedDecodeParams,                                                              \
      (ebb::MixedDecode < D, SETS == 4 ? 3 : 2, SETS, ebb::Way::kBulk, POLAR, ANY > ::kThreads), \
      (ebb::MixedDecode < D, SETS == 4 ? 3 : 2, SETS, ebb::Way::kBulk, POLAR,                    \
       ANY > ::kRegisters)) {                                                                    \
    ebb::MixedDecode<D, SETS == 4 ? 3 : 2, SETS, ebb::Way::kBulk, POLAR, ANY>::run(p);           \
  }
#endif
#define EBB_DECODE_MIXED_RING(NAME, D, SETS, ANY)                                        \
  EBB_KERNEL_EARLY(NAME, ebb::MixedDecodeParams,                                         \
                   (ebb::MixedDecode<D, 2, SETS, ebb::Way::kRing, true, ANY>::kThreads), \
                   (ebb::MixedDecode<D, 2, SETS, ebb::Way::kRing, true, ANY>::kCtas)) {  \
    ebb::MixedDecode<D, 2, SETS, ebb::Way::kRing, true, ANY>::run(p);                    \
  }
