// y = x w^T for up to 64 rows of x, or up to 128 where weights are packed, with wgmma for sm_90a:
// weights stream through shared memory at the speed of memory.
//
// Y^T = W X^T: a tile of up to 128 outputs (of 192 where rows are more than 64), in slices of 16,
// is the m side, 64 to an instruction, the rows of x are the n side. A unit is a tile by 64 inputs.
// CTAs have runs of units, all inputs of a tile before the next tile, and leave partial sums of
// tiles that they share in memory. A value is its own signal: memory holds kEmpty where none has
// come yet, and whoever reads one leaves that again. (Where the last to arrive was told by a
// counter, all had to store before they counted and to count before they read: 4 us, not 2.)
// Partial sums add up in the order of the inputs.
//
// Where tiles divide into as many parts as there are CTAs for them, about, each CTA has one part of
// one tile; when all have left their sums, each adds up some slices of the tile's outputs. They
// wait for each other, which is safe among up to eight CTAs of neighbouring numbers: those of
// complete tiles come to their end and make room for the rest. Else runs are of equal length, so
// that every CTA reads the same number of bytes whatever the shape, and the CTA whose run a tile
// begins in adds up the tile; mostly the others have passed it long before.
//
// Which units make a partial sum, and the order of all sums, depend on the shape, the grid and N
// alone: a row's result depends neither on the other rows, nor on how many there are, nor on who
// comes when.
//
// Gated products, activation(W_gate x) * (W_up x), have eight rows of W_gate and then the same
// eight of W_up in turns in a tile, so that a thread's sums g and g + 8 of a matrix instruction are
// a gate and what it opens. The copy engine brings them so.
//
// Packed weights (packed.cuh) come in chunks or rows, 128 inputs to a unit, and become operand A in
// registers, a quarter of a unit while the tensor cores work on those before. Sums are multiplied
// by the outputs' factors before anything else.
//
// The norm between two products needs no kernel of its own: y = W n(r), n(r) = r g / rms(r), r the
// residual stream. The product before adds its sums to r, and leaves r g, not divided, and the
// squares of r, a sum for each 16 outputs; this one divides its sums by the rms, which depends on
// the row alone.
//
// A thread brings weights and x with the copy engine, each into a ring of its own. Weights do not
// depend on the kernel before: their ring fills while that one ends. Shared memory is half a
// multiprocessor's, so that the same can happen to the kernel after; but for more than 64 rows a
// CTA has a multiprocessor to itself, as x is read again for each tile: the fewer tiles the better.
#pragma once
#include "../common/kernel.cuh"
#include "../common/wgmma.cuh"
#include "stream_ends.cuh"
#include "stream_norms.cuh"
#include "stream_runs.cuh"
#include "stream_weights.cuh"

namespace ebb {

#ifndef EBB_HAS_WGMMA

template <int N, class WEIGHTS>
struct StreamProduct {
  static constexpr int kThreads = N > 64 ? 416 : 288, kCtas = N > 64 ? 1 : 2;
  static __device__ __forceinline__ void run(const StreamParams&, uint8_t*) { __trap(); }
};

#else

template <int N, class WEIGHTS>
struct StreamProduct {
  // Whether it takes part in norms.
  static constexpr bool kNorms = N <= 64;
  static constexpr int kCtas = N > 64 ? 1 : 2, kWarpgroups = N > 64 ? 3 : 2,
                       kOutputs = kWarpgroups * 64, kConsumerWarps = kWarpgroups * 4,
                       kThreads = (kConsumerWarps + 1) * 32;
  static constexpr bool kPacked = WEIGHTS::kPacked, kInRows = WEIGHTS::kInRows,
                        kByWarps = kPacked && N <= 16;
  // Quarters of a packed unit whose operands there are registers for at once: of 64 rows there are
  // 112 a thread, as two CTAs share a multiprocessor; of 128, bytes and many scales take some.
  static constexpr int kQuarters =
      N == 64 || (N > 64 && WEIGHTS::kSliceBytes >= 2048 + 512) ? 2 : 4;
  // Of a unit: inputs, how many times 64 that is, bytes of weights and of x.
  static constexpr uint32_t kInputs = WEIGHTS::kInputs, kBoxes = kInputs / kStreamInputs,
                            kWeights = kOutputs / kStreamSlice * WEIGHTS::kSliceBytes,
                            kBox = N * 128, kRows = kBoxes * kBox;
  // Shared memory: weights [stages][outputs][128 bytes] or [stages][slices], x
  // [stages][boxes][N][128 bytes], barriers, and squares of x's rows. Where two CTAs fit a
  // multiprocessor, the small kernels between two products do so beside them.
  static constexpr uint32_t kRings = (kCtas == 1 ? 216 : 108) << 10, kStagesMax = 16;
  static constexpr uint32_t stages(uint32_t row_stages) {
    const uint32_t most = (kRings - row_stages * kRows) / kWeights;
    return most < kStagesMax ? most : kStagesMax;
  }
  static constexpr uint32_t row_stages(uint32_t wanted) {
    return stages(wanted) >= wanted ? wanted : row_stages(wanted - 1);
  }
  static constexpr uint32_t kRowStages = row_stages(N >= 64 ? 3 : N == 32 ? 4 : 6);
  static constexpr uint32_t kStages = stages(kRowStages);
  static constexpr uint32_t kX = (kStages * kWeights + 1023) / 1024 * 1024, kBarriers = kRings,
                            kSquares = kRings + 256;
  static constexpr uint32_t kSharedBytes = kSquares + (kNorms ? 4 * 64 * (kConsumerWarps + 1) : 0);
  static_assert(kX + kRowStages * kRows <= kRings && kBarriers + 16 * kStages <= kSquares);
  // x of a unit is on its way only after the weights of the unit that had its barrier before have
  // been used.
  static_assert(kRowStages <= kStages);
  // A unit of plain weights is given back when the next is begun.
  static_assert(kStages >= 2 && kRowStages >= 2);

  const StreamParams& p;
  uint8_t* const shared;
  const uint32_t base, steps;  // units of a tile
  const StreamRuns runs;
  // this CTA's run: CTAs of lower numbers, which begin no later, have the later ones
  const uint32_t mine;
  const uint32_t begin, end;  // its units

  // Barriers of a stage of the weights: full when they and the x of the same unit are there.
  __device__ __forceinline__ uint32_t full(uint32_t stage) const {
    return base + kBarriers + 16 * stage;
  }
  __device__ __forceinline__ uint32_t empty(uint32_t stage) const { return full(stage) + 8; }

  // A place in a ring: the stage, and the parity of the phase that fills it.
  template <uint32_t STAGES>
  struct Place {
    uint32_t stage = 0, parity = 0;
    __device__ __forceinline__ void advance() {
      if (++stage == STAGES) {
        stage = 0;
        parity ^= 1;
      }
    }
  };

  // A unit by its tile and its step in it.
  struct Unit {
    uint32_t tile, step;
    __device__ __forceinline__ Unit(uint32_t unit, uint32_t steps)
        : tile(unit / steps), step(unit % steps) {}
    __device__ __forceinline__ void advance(uint32_t steps) {
      if (++step == steps) {
        step = 0;
        tile++;
      }
    }
  };

  static __device__ __forceinline__ uint32_t tiles(const StreamParams& p) {
    return (p.outputs + kStreamSlice * p.slices - 1) / (kStreamSlice * p.slices);
  }

  __device__ __forceinline__ StreamProduct(const StreamParams& params, uint8_t* sm)
      : p(params),
        shared(sm),
        base(smem_address(sm)),
        steps((params.inputs + kInputs - 1) / kInputs),
        runs(params.parts, tiles(params), steps, gridDim.x),
        mine(gridDim.x - 1 - blockIdx.x),
        begin(runs.begin(mine)),
        end(runs.begin(mine + 1)) {}

  static __device__ __forceinline__ void run(const StreamParams& params, uint8_t* sm) {
    StreamProduct kernel(params, sm);
    const bool consumes = threadIdx.x < kConsumerWarps * 32;
    if (in_phase(0)) {
      if (threadIdx.x == 0) {
        for (uint32_t stage = 0; stage < kStages; stage++) {
          mbarrier_init(kernel.full(stage), 2);
          mbarrier_init(kernel.empty(stage), kConsumerWarps);
        }
        mbarrier_init_fence();
      }
      __syncthreads();
      if (consumes) {
        kernel.consume();
      } else if (threadIdx.x == kConsumerWarps * 32) {
        kernel.produce();
      }
    }
    if (in_phase(1) && consumes && params.parts > 1) kernel.gather();
  }

  // ---- The producer: one thread.

  __device__ __forceinline__ void produce() const {
    if constexpr (kInRows) prefetch_tensor_map(&p.w);
    prefetch_tensor_map(&p.x);
    const uint64_t policy = policy_evict_first();
    const uint32_t units = end - begin;
    Unit weights_unit(begin, steps), rows_unit(begin, steps);
    Place<kStages> weights_place;
    auto bring_weights = [&] {
      const uint32_t barrier = full(weights_place.stage),
                     to = base + weights_place.stage * kWeights;
      const uint32_t slice = weights_unit.tile * p.slices;
      if constexpr (!kInRows) {
        const uint32_t all = (p.outputs + kStreamSlice - 1) / kStreamSlice,
                       bytes = min(p.slices, all - slice) * WEIGHTS::kSliceBytes;
        mbarrier_arrive_expect(barrier, bytes);
        const uint64_t chunk = static_cast<uint64_t>(weights_unit.step) * all + slice;
        bulk_copy(to, p.packed + chunk * WEIGHTS::kSliceBytes, bytes, barrier, policy);
        weights_unit.advance(steps);
        weights_place.advance();
        return;
      }
      // Of rows 128 bytes each.
      mbarrier_arrive_expect(barrier, p.slices * (kStreamSlice * 128));
      if (p.gated) {
        tensor_copy_4d(to, &p.w, weights_unit.step * kStreamInputs, 0, 0, slice, barrier, policy);
      } else {
        tensor_copy_3d(to, &p.w, weights_unit.step * kStreamInputs, slice * kStreamSlice, 0,
                       barrier, policy);
      }
      weights_unit.advance(steps);
      weights_place.advance();
    };
    Place<kStages> rows_barrier;
    Place<kRowStages> rows_place;
    auto bring_rows = [&] {
      mbarrier_arrive_expect(full(rows_barrier.stage), kRows);
#pragma unroll
      for (uint32_t box = 0; box < kBoxes; box++)
        tensor_copy_3d(base + kX + rows_place.stage * kRows + box * kBox, &p.x,
                       rows_unit.step * kInputs + box * kStreamInputs, 0, 0,
                       full(rows_barrier.stage));
      rows_unit.advance(steps);
      rows_barrier.advance();
      rows_place.advance();
    };
    // No kernel writes weights. But what the kernel before does last must not wait for too many of
    // them.
    constexpr uint32_t kEarlyMost = 5 * (kOutputs * 128) / kWeights,
                       kEarly = kStages < kEarlyMost ? kStages : kEarlyMost;
#pragma unroll 1
    for (uint32_t i = 0; i < min(kEarly, units); i++) bring_weights();
    wait_for_previous();
#pragma unroll 1
    for (uint32_t i = 0; i < min(kRowStages, units); i++) bring_rows();
#pragma unroll 1
    for (uint32_t i = kEarly; i < min(kStages, units); i++) bring_weights();
    // Once a unit has been used, its places are for the units a whole ring later.
    Place<kStages> used;
#pragma unroll 1
    for (uint32_t unit = 0; unit + kRowStages < units; unit++) {
      mbarrier_wait(empty(used.stage), used.parity);
      if (unit + kStages < units) bring_weights();
      bring_rows();
      used.advance();
    }
  }

  // ---- The consumers: warpgroups, each 64 of the outputs. Where a tile has less, the last
  // warps' sums are of anything.

  // Of outputs 64 warpgroup + 16 warp + (g, g + 8) of the tile and rows 8 i + 2 t (+ 1).
  using Sums = float[N / 2];

  __device__ __forceinline__ void consume() const {
    const uint32_t lane = threadIdx.x % 32, warpgroup = __shfl_sync(~0u, threadIdx.x / 128, 0);
    const uint64_t w_matrix = wgmma_matrix(base + warpgroup * (64 * 128), 16, 1024),
                   x_matrix = wgmma_matrix(base + kX, 16, 1024);
    auto release = [&](uint32_t stage) {
      // All lanes have read their codes.
      if constexpr (kPacked) __syncwarp();
      if (lane == 0) mbarrier_arrive(empty(stage));
    };
    wait_for_previous();  // before y and the partial sums are touched
    Squares squares;
    if (kNorms && p.norms) squares.load(p);
    // Of many rows there is no room for them beside the sums, nor beside operands.
    constexpr bool kShareFirst = N > 32 || (kPacked && N > 8);
    if (kNorms && kShareFirst && p.norms) squares.share(p, square_sums());
    bool are_shared = kShareFirst || !p.norms;
    Place<kStages> weights;
    Place<kRowStages> rows;
    Sums sums;
#pragma unroll 1
    for (uint32_t unit = begin; unit < end;) {
      const uint32_t tile = unit / steps, count = min(steps - unit % steps, end - unit);
      [[maybe_unused]] uint32_t before = 0;
#pragma unroll 1
      for (uint32_t step = 0; step < count; step++) {
        mbarrier_wait(full(weights.stage), weights.parity);
        if constexpr (kByWarps) {
          multiply(weights.stage, rows.stage, step == 0, sums);
          release(weights.stage);
        } else if constexpr (kPacked) {
          const uint8_t* const chunk =
              shared + weights.stage * kWeights + threadIdx.x / 32 * WEIGHTS::kSliceBytes;
          // Operands of a quarter are made while the products of those before run. None may be
          // written before its product has been waited for: there the compiler would have all
          // products of the loop wait for each other.
          typename WEIGHTS::Chunk::Scales scales;
          QuarterChunk a[kQuarters];
#pragma unroll
          for (int quarter = 0; quarter < 4; quarter++) {
            const int at = quarter % kQuarters;
            WEIGHTS::Chunk::dequantise(chunk, quarter, lane, scales, a[at]);
            wgmma_pin(sums);
            wgmma_fence();
            const uint64_t x = x_matrix + (rows.stage * kRows + quarter / 2 * kBox) / 16;
#pragma unroll
            for (int k = 0; k < 2; k++)
              wgmma_rs_k_major(sums, a[at][k], x + (quarter % 2 * 64 + k * 32) / 16,
                               step > 0 || quarter > 0 || k > 0);
            wgmma_commit();
            if (at == kQuarters - 1) {
              wgmma_wait<0>();
              wgmma_pin(sums);
            }
          }
          release(weights.stage);
        } else {
          wgmma_pin(sums);
          wgmma_fence();
#pragma unroll
          for (int k = 0; k < kStreamInputs / 16; k++) {
            wgmma_ss(sums, w_matrix + (weights.stage * kWeights + k * 32) / 16,
                     x_matrix + (rows.stage * kRows + k * 32) / 16, step > 0 || k > 0);
          }
          wgmma_commit();
          wgmma_pin(sums);
          wgmma_wait<1>();
          if (step > 0) release(before);
        }
        before = weights.stage;
        weights.advance();
        rows.advance();
        if (!kShareFirst && N > 16 && !are_shared && step % 3 == 2) {
          squares.add();
          squares.load(p);
        }
      }
      if constexpr (!kPacked) {
        wgmma_wait<0>();
        wgmma_pin(sums);
        release(before);
      }
      unit += count;
      if (!are_shared) {
        squares.share(p, square_sums());
        are_shared = true;
      }
      const uint32_t slice = threadIdx.x / 32;
      if (slice >= p.slices) continue;
      if (p.parts > 1) {
        leave(sums);
        continue;
      }
      if (!merge(sums, tile)) continue;
      StreamResidual residuals[kEarlyOctets];
      if (kNorms && p.residual) {
#pragma unroll
        for (int i = 0; i < kEarlyOctets; i++)
          residuals[i].load(p, {tile * p.slices + slice, static_cast<uint32_t>(i)});
      }
#pragma unroll
      for (int i = 0; i < N / 8; i++) {
        const StreamBlock block = {tile * p.slices + slice, static_cast<uint32_t>(i)};
        StreamResidual& residual = residuals[i % kEarlyOctets];
        if (kNorms && p.residual && i >= kEarlyOctets) residual.load(p, block);
        float four[4] = {sums[4 * i], sums[4 * i + 1], sums[4 * i + 2], sums[4 * i + 3]};
        finish(block, four, residual);
      }
    }
  }

  // A warp multiplies its slice of a packed unit by itself: for few rows, what warps of a warpgroup
  // wait for each other takes longer than products.
  __device__ __forceinline__ void multiply(uint32_t stage, uint32_t row_stage, bool first,
                                           Sums& sums) const {
    const uint32_t lane = threadIdx.x % 32, row = lane % 8;
    const uint8_t* const chunk =
        shared + stage * kWeights + threadIdx.x / 32 * WEIGHTS::kSliceBytes;
    const uint32_t x = base + kX + row_stage * kRows + row * 128;
    typename WEIGHTS::Chunk::Scales scales;
    // Two chains of instructions.
    float even[N / 2], odd[N / 2];
#pragma unroll
    for (int i = 0; i < N / 2; i++) even[i] = first ? 0.f : sums[i], odd[i] = 0.f;
#pragma unroll
    for (int quarter = 0; quarter < 4; quarter++) {
      QuarterChunk a;
      WEIGHTS::Chunk::dequantise(chunk, quarter, lane, scales, a);
      // Eight inputs each of the quarter's 32 of eight rows: of k = 16 two matrices.
      const uint32_t column = quarter % 2 * 4 + lane / 8;
#pragma unroll
      for (int octet = 0; octet < N / 8; octet++) {
        uint32_t b[4];
        ldmatrix_x4(b, x + quarter / 2 * kBox + octet * 1024 + (column ^ row) * 16);
        float (&to_even)[4] = reinterpret_cast<float (&)[4]>(even[4 * octet]);
        float (&to_odd)[4] = reinterpret_cast<float (&)[4]>(odd[4 * octet]);
        mma_bf16(to_even, a[0], b[0], b[1]);
        mma_bf16(to_odd, a[1], b[2], b[3]);
      }
    }
#pragma unroll
    for (int i = 0; i < N / 2; i++) sums[i] = even[i] + odd[i];
  }

  // Octets whose residuals are loaded together.
  static constexpr int kEarlyOctets = N <= 16 ? N / 8 : 1;

  __device__ __forceinline__ void finish(const StreamBlock& block, float (&sums)[4],
                                         const StreamResidual& residual) const {
    if (block.output() >= p.outputs) return;
    if constexpr (kPacked) {
      // Of rows, factors lie as outputs do.
      const bool apart = kInRows && p.gated;
      const float* const factors =
          p.factors + (apart ? block.output() / 2 : block.output()) + threadIdx.x % 32 / 4;
      const float first = factors[0], second = factors[apart ? p.outputs / 2 : 8];
      sums[0] *= first, sums[1] *= first;
      sums[2] *= second, sums[3] *= second;
    }
    if constexpr (kNorms) {
      if (p.norms) Squares::divide(square_sums(), block, sums);
      if (p.residual) return add_to_residual(p, block, sums, residual, N);
    }
    store(p, block, sums);
  }

  // Where they are added up; see stream_norms.cuh.
  using Squares = StreamSquares<kNorms ? N : 64, kConsumerWarps>;
  __device__ __forceinline__ float* square_sums() const {
    return reinterpret_cast<float*>(shared + kSquares);
  }

  // ---- Partial sums: of a run [slices / 4][octets][slices of four][lanes], four sums of a lane
  // each.

  static constexpr uint32_t kFourSlices = N * 16, kRun = kWarpgroups * kFourSlices;

  __device__ __forceinline__ float4* partial(uint32_t run, uint32_t slice, uint32_t octet) const {
    return reinterpret_cast<float4*>(p.partial) +
           (run * kRun + slice / 4 * kFourSlices + octet * 128 + slice % 4 * 32 + threadIdx.x % 32);
  }

  // Leaves this warp's slice for others.
  __device__ __forceinline__ void leave(const Sums& sums) const {
    float4* const to = partial(mine, threadIdx.x / 32, 0);
#pragma unroll
    for (int i = 0; i < N / 8; i++)
      store_relaxed(to + i * 128, make_float4(present(sums[4 * i]), present(sums[4 * i + 1]),
                                              present(sums[4 * i + 2]), present(sums[4 * i + 3])));
  }

  // Adds what `count` runs leave of OCTETS octets from `at` on.
  template <int AT_ONCE, int OCTETS>
  static __device__ __forceinline__ void add(float (&sums)[4 * OCTETS], float4* at,
                                             uint32_t count) {
#pragma unroll 1
    for (uint32_t left = count; left > 0; left -= min(left, static_cast<uint32_t>(AT_ONCE))) {
      float4 v[AT_ONCE][OCTETS];
      bool there;
      do {
        there = true;
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++) {
#pragma unroll
          for (int i = 0; i < OCTETS; i++)
            v[k][i] = static_cast<uint32_t>(k) < left ? load_relaxed(at + (k * kRun + i * 128))
                                                      : make_float4(0.f, 0.f, 0.f, 0.f);
        }
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++) {
#pragma unroll
          for (int i = 0; i < OCTETS; i++)
            there &= is_present(v[k][i].x) & is_present(v[k][i].y) & is_present(v[k][i].z) &
                     is_present(v[k][i].w);
        }
        if (!there) wait_for_other_ctas();
      } while (!there);
#pragma unroll
      for (int k = 0; k < AT_ONCE; k++) {
        if (static_cast<uint32_t>(k) >= left) break;
#pragma unroll
        for (int i = 0; i < OCTETS; i++) {
          sums[4 * i] += v[k][i].x;
          sums[4 * i + 1] += v[k][i].y;
          sums[4 * i + 2] += v[k][i].z;
          sums[4 * i + 3] += v[k][i].w;
          const float none = __uint_as_float(kEmpty);
          store_relaxed(at + (k * kRun + i * 128), make_float4(none, none, none, none));
        }
      }
      at += AT_ONCE * kRun;
    }
  }

  // Of runs of equal length: whether this warp's slice of the tile is stored here; `sums` is then
  // the sum over all inputs.
  __device__ __forceinline__ bool merge(Sums& sums, uint32_t tile) const {
    if (p.parts == 1) return true;
    const uint32_t first = runs.run_of(tile * steps), last = runs.run_of((tile + 1) * steps - 1);
    if (mine != first) {
      leave(sums);
      return false;
    }
    // As many loads in flight as a few registers hold.
    if constexpr (kPacked && N >= 64) {
#pragma unroll
      for (uint32_t octet = 0; octet < N / 8; octet += 4) {
        float (&some)[16] = reinterpret_cast<float (&)[16]>(sums[4 * octet]);
        add<1, 4>(some, partial(mine + 1, threadIdx.x / 32, octet), last - first);
      }
    } else {
      add<64 / N, N / 8>(sums, partial(mine + 1, threadIdx.x / 32, 0), last - first);
    }
    return true;
  }

  // Of runs that are parts of tiles: adds up and finishes this CTA's share of its tile's blocks.
  __device__ __forceinline__ void gather() const {
    if (kNorms && !in_phase(0) && p.norms) {
      Squares squares;
      squares.load(p);
      squares.share(p, square_sums());
    }
    const uint32_t tile = mine / p.parts, part = mine % p.parts,
                   slices = (p.slices - part + p.parts - 1) / p.parts;
#pragma unroll 1
    for (uint32_t i = threadIdx.x / 32; i < slices * (N / 8); i += kConsumerWarps) {
      const uint32_t slice = part + i / (N / 8) * p.parts, octet = i % (N / 8);
      const StreamBlock block = {tile * p.slices + slice, octet};
      StreamResidual residual;
      if (kNorms && p.residual) residual.load(p, block);
      float sums[4] = {-0.f, -0.f, -0.f, -0.f};  // -0 + x is x for every x
      add<8, 1>(sums, partial(tile * p.parts, slice, octet), p.parts);
      finish(block, sums, residual);
    }
  }

  static __device__ __forceinline__ bool is_present(float sum) {
    return __float_as_uint(sum) != kEmpty;
  }
  static __device__ __forceinline__ float present(float sum) {
    return is_present(sum) ? sum : __uint_as_float(0x7fffffff);
  }
};

#endif

}  // namespace ebb
