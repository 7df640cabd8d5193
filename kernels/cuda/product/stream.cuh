// y = x w^T for up to 64 rows of x, with wgmma for sm_90a: weights stream through shared memory at the speed of memory.
//
// Y^T = W X^T: a tile of 128 outputs is the m side, 64 to an instruction, the rows of x are the n side. A unit is a tile by
// 64 inputs. The units of a product, all inputs of a tile before the next tile, are dealt to the CTAs in consecutive runs of
// equal length, so that every CTA reads the same number of bytes whatever the shape. A CTA whose run begins inside a tile leaves
// partial sums of that tile in memory; the CTA whose run the tile begins in waits for those, and adds them up in the order of the
// inputs. A value is its own signal: memory holds kEmpty where none has come yet, and whoever reads one leaves that again. (Where
// the last to arrive was told by a counter, all had to store before they counted and to count before they read: 4 us, not 2.)
//
// Which units make a partial sum, and the order of all sums, depend on the shape and the grid alone: for one grid a row's result
// depends neither on the other rows, nor on how many there are, nor on N, nor on who comes when.
//
// Gated products, silu(W_gate x) * (W_up x), have eight rows of W_gate and then the same eight of W_up in turns in a tile, so that
// a thread's sums g and g + 8 of a matrix instruction are a gate and what it opens. The copy engine brings them so.
//
// The norm between two products needs no kernel of its own for up to 16 rows: y = W n(r), n(r) = r g / rms(r), r the residual stream.
// The product before adds its sums to r, and leaves r g, not divided, and the squares of r, a sum for each 16 outputs; this one
// divides its sums by the rms, which depends on the row alone.
//
// A thread brings weights and x with the copy engine, each into a ring of its own. Weights do not depend on the kernel before:
// their ring fills while that one ends. Shared memory is half a multiprocessor's, so that the same can happen to the kernel after.
#pragma once
#include "../common/ptx.cuh"
#include "../common/reduce.cuh"
#include "../common/silu.cuh"
#include "../common/tensor_copy.cuh"
#include "../common/wgmma.cuh"

namespace ebb {

struct StreamParams {
  TensorMap x;         // [rows][inputs]; a copy: N rows, 64 inputs
  TensorMap w;         // [outputs][inputs]; a copy: 128 outputs, 64 inputs; if gated [outputs / 16][2][8][inputs], a copy: 8, 2, 8, 64
  void* y;             // [rows][outputs], bf16 or f32; if gated [rows][outputs / 2], bf16
  float* partial;      // [grid][128 * N], of the tile that a run begins in; kEmpty between launches
  uint32_t rows;       // at most N
  uint32_t inputs;     // a multiple of 8
  uint32_t outputs;    // a multiple of 8; rows * outputs < 2^32
  uint32_t wide;       // y is f32
  uint32_t gated;      // y = silu(gates) * what they open
  float* residual;       // [rows][outputs], or null: what sums are added to; y is then `residual` times `weight`
  const bf16* weight;    // [outputs]
  float* squares;        // [8 * tiles][16 rows]: of `residual`, a sum for each 16 outputs
  const float* norms;    // such sums of `inputs` values, or null: sums are divided by the root of their mean
  float eps;             // added to that
  uint32_t reserved[13];
};
static_assert(sizeof(StreamParams) == 384);

constexpr int kStreamOutputs = 128, kStreamInputs = 64;  // of a unit

// Bits of a partial sum that has not come: of a NaN, but not of the one that arithmetic makes.
constexpr uint32_t kEmpty = 0xffffffff;

// The runs of units. `units` is at least the number of CTAs.
struct StreamRuns {
  uint32_t each, more;  // a run is `each` units, the first `more` runs are one longer

  __device__ __forceinline__ StreamRuns(uint32_t units, uint32_t runs) : each(units / runs), more(units % runs) {}
  __device__ __forceinline__ uint32_t begin(uint32_t run) const { return run * each + min(run, more); }
  __device__ __forceinline__ uint32_t run_of(uint32_t unit) const {
    const uint32_t longer = more * (each + 1);
    return unit < longer ? unit / (each + 1) : more + (unit - longer) / each;
  }
};

#ifndef EBB_HAS_WGMMA

template <int N>
struct StreamProduct {
  static constexpr int kThreads = 288;
  static __device__ __forceinline__ void run(const StreamParams&, uint8_t*) { __trap(); }
};

#else

template <int N>
struct StreamProduct {
  static constexpr int kWarpgroups = 2, kConsumerWarps = kWarpgroups * 4, kThreads = (kConsumerWarps + 1) * 32;
  static constexpr uint32_t kWeights = kStreamOutputs * 128, kRows = N * 128;
  // Most rows of products that take part in norms.
  static constexpr bool kNorms = N <= 16;
  // Shared memory: weights [stages][128][128 bytes], x [stages][N][128 bytes], barriers, and squares of x's rows by warp. Two
  // CTAs fit a multiprocessor, and the small kernels between two products beside them.
  static constexpr uint32_t kRings = 108 << 10;
  static constexpr uint32_t kRowStages = N == 64 ? 3 : N == 32 ? 4 : 6;
  static constexpr uint32_t kStages = (kRings - kRowStages * kRows) / kWeights;
  static constexpr uint32_t kX = kStages * kWeights, kBarriers = kRings, kSquares = kRings + 256;
  static constexpr uint32_t kSharedBytes = kRings + 1024;
  static_assert(kX + kRowStages * kRows <= kRings && kBarriers + 16 * kStages <= kSquares && kSquares + 4 * 16 * kConsumerWarps <= kSharedBytes);
  // x of a unit is on its way only after the weights of the unit that had its barrier before have been used.
  static_assert(kRowStages <= kStages);
  // A unit is given back when the next is begun.
  static_assert(kStages >= 2 && kRowStages >= 2);

  const StreamParams& p;
  uint8_t* const shared;
  const uint32_t base, steps;  // units of a tile
  const StreamRuns runs;
  const uint32_t mine;         // this CTA's run: CTAs of lower numbers, which begin no later, have the later ones, for which it waits
  const uint32_t begin, end;   // its units

  // Barriers of a stage of the weights: full when they and the x of the same unit are there.
  __device__ __forceinline__ uint32_t full(uint32_t stage) const { return base + kBarriers + 16 * stage; }
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
    __device__ __forceinline__ Unit(uint32_t unit, uint32_t steps) : tile(unit / steps), step(unit % steps) {}
    __device__ __forceinline__ void advance(uint32_t steps) {
      if (++step == steps) {
        step = 0;
        tile++;
      }
    }
  };

  static __device__ __forceinline__ uint32_t tiles(const StreamParams& p) { return (p.outputs + kStreamOutputs - 1) / kStreamOutputs; }

  __device__ __forceinline__ StreamProduct(const StreamParams& params, uint8_t* sm)
      : p(params),
        shared(sm),
        base(smem_address(sm)),
        steps((params.inputs + kStreamInputs - 1) / kStreamInputs),
        runs(tiles(params) * steps, gridDim.x),
        mine(gridDim.x - 1 - blockIdx.x),
        begin(runs.begin(mine)),
        end(runs.begin(mine + 1)) {}

  static __device__ __forceinline__ void run(const StreamParams& params, uint8_t* sm) {
    StreamProduct kernel(params, sm);
    if (threadIdx.x == 0) {
      for (uint32_t stage = 0; stage < kStages; stage++) {
        mbarrier_init(kernel.full(stage), 2);
        mbarrier_init(kernel.empty(stage), kConsumerWarps);
      }
      mbarrier_init_fence();
    }
    __syncthreads();
    if (threadIdx.x < kConsumerWarps * 32) {
      kernel.consume();
    } else if (threadIdx.x == kConsumerWarps * 32) {
      kernel.produce();
    }
  }

  // ---- The producer: one thread.

  __device__ __forceinline__ void produce() const {
    prefetch_tensor_map(&p.w);
    prefetch_tensor_map(&p.x);
    const uint64_t policy = policy_evict_first();
    const uint32_t units = end - begin;
    Unit weights_unit(begin, steps), rows_unit(begin, steps);
    Place<kStages> weights_place;
    auto bring_weights = [&] {
      const uint32_t barrier = full(weights_place.stage), to = base + weights_place.stage * kWeights;
      mbarrier_arrive_expect(barrier, kWeights);
      if (p.gated) {
        tensor_copy_4d(to, &p.w, weights_unit.step * kStreamInputs, 0, 0, weights_unit.tile * (kStreamOutputs / 16), barrier, policy);
      } else {
        tensor_copy_3d(to, &p.w, weights_unit.step * kStreamInputs, weights_unit.tile * kStreamOutputs, 0, barrier, policy);
      }
      weights_unit.advance(steps);
      weights_place.advance();
    };
    Place<kStages> rows_barrier;
    Place<kRowStages> rows_place;
    auto bring_rows = [&] {
      mbarrier_arrive_expect(full(rows_barrier.stage), kRows);
      tensor_copy_3d(base + kX + rows_place.stage * kRows, &p.x, rows_unit.step * kStreamInputs, 0, 0, full(rows_barrier.stage));
      rows_unit.advance(steps);
      rows_barrier.advance();
      rows_place.advance();
    };
    // No kernel writes weights. But what the kernel before does last must not wait for too many of them.
    constexpr uint32_t kEarly = kStages < 5 ? kStages : 5;
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

  // ---- The consumers: two warpgroups, each 64 of the outputs.

  // Of outputs 128 tile + 64 warpgroup + 16 warp + (g, g + 8) and rows 8 i + 2 t (+ 1).
  using Sums = float[N / 2];

  __device__ __forceinline__ void consume() const {
    const uint32_t lane = threadIdx.x % 32, warpgroup = __shfl_sync(~0u, threadIdx.x / 128, 0);
    const uint64_t w_matrix = wgmma_matrix(base + warpgroup * (64 * 128), 16, 1024), x_matrix = wgmma_matrix(base + kX, 16, 1024);
    auto release = [&](uint32_t stage) {
      if (lane == 0) mbarrier_arrive(empty(stage));
    };
    wait_for_previous();  // before y and the partial sums are touched
    // On their way while the products run.
    float squares[kNorms ? N : 4];
    if (kNorms && p.norms) load_squares(squares);
    bool are_summed = false;
    Place<kStages> weights;
    Place<kRowStages> rows;
    Sums sums;
#pragma unroll 1
    for (uint32_t unit = begin; unit < end;) {
      const uint32_t tile = unit / steps, count = min(steps - unit % steps, end - unit);
      uint32_t before = 0;
#pragma unroll 1
      for (uint32_t step = 0; step < count; step++) {
        mbarrier_wait(full(weights.stage), weights.parity);
        wgmma_pin(sums);
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < kStreamInputs / 16; k++) {
          wgmma_ss(sums, w_matrix + (weights.stage * kWeights + k * 32) / 16, x_matrix + (rows.stage * kRows + k * 32) / 16, step > 0 || k > 0);
        }
        wgmma_commit();
        wgmma_pin(sums);
        wgmma_wait<1>();
        if (step > 0) release(before);
        before = weights.stage;
        weights.advance();
        rows.advance();
      }
      wgmma_wait<0>();
      wgmma_pin(sums);
      release(before);
      unit += count;
      if constexpr (kNorms) {
        if (p.norms && !are_summed) {
          sum_squares(squares);
          are_summed = true;
        }
        if (p.residual) {
          Residual before;
          load_residual(before, tile, warpgroup);
          if (!merge(sums, tile, warpgroup)) continue;
          if (p.norms) divide(sums);
          add_to_residual(sums, before, tile, warpgroup);
          continue;
        }
      }
      if (!merge(sums, tile, warpgroup)) continue;
      if (kNorms && p.norms) divide(sums);
      store(sums, tile, warpgroup);
    }
  }

  __device__ __forceinline__ float* squares_of(uint32_t warp) const { return reinterpret_cast<float*>(shared + kSquares) + 16 * warp; }

  // This thread's share of the squares of x's rows.
  template <int L>
  __device__ __forceinline__ void load_squares(float (&sums)[L]) const {
    const uint32_t slots = (p.inputs + kStreamOutputs - 1) / kStreamOutputs * kConsumerWarps;
    auto square = [&](uint32_t slot, int row) {
      return slot < slots ? *reinterpret_cast<const float4*>(p.norms + slot * 16 + row) : make_float4(0.f, 0.f, 0.f, 0.f);
    };
#pragma unroll
    for (int row = 0; row < L; row += 4) *reinterpret_cast<float4*>(&sums[row]) = square(threadIdx.x, row);
#pragma unroll 1
    for (uint32_t slot = threadIdx.x + kConsumerWarps * 32; slot < slots; slot += kConsumerWarps * 32) {
#pragma unroll
      for (int row = 0; row < L; row += 4) {
        const float4 v = square(slot, row);
        sums[row] += v.x;
        sums[row + 1] += v.y;
        sums[row + 2] += v.z;
        sums[row + 3] += v.w;
      }
    }
  }

  // Each warp adds up its share.
  template <int L>
  __device__ __forceinline__ void sum_squares(const float (&sums)[L]) const {
#pragma unroll
    for (int row = 0; row < L; row++) {
      const float sum = warp_sum(sums[row]);
      if (threadIdx.x % 32 == 0) squares_of(threadIdx.x / 32)[row] = sum;
    }
    named_barrier_sync(3, kConsumerWarps * 32);
  }

  __device__ __forceinline__ void divide(Sums& sums) const {
    const uint32_t t = threadIdx.x % 4;
#pragma unroll
    for (int i = 0; i < N / 8; i++) {
#pragma unroll
      for (int r = 0; r < 2; r++) {
        float square = 0.f;
#pragma unroll
        for (int warp = 0; warp < kConsumerWarps; warp++) square += squares_of(warp)[8 * i + 2 * t + r];
        const float inverse = rsqrtf(square / p.inputs + p.eps);
        sums[4 * i + r] *= inverse;
        sums[4 * i + 2 + r] *= inverse;
      }
    }
  }

  // What a thread's sums are added to, and the weights of their outputs; zeros beyond the edges.
  struct Residual {
    float x[N / 2], weight[2];
  };

  __device__ __forceinline__ void load_residual(Residual& residual, uint32_t tile, uint32_t warpgroup) const {
    const uint32_t lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const uint32_t first = tile * kStreamOutputs + warpgroup * 64 + threadIdx.x / 32 % 4 * 16 + g;
#pragma unroll
    for (int i = 0; i < N / 2; i++) {
      const uint32_t row = i / 4 * 8 + 2 * t + i % 2, output = first + i / 2 % 2 * 8;
      residual.x[i] = row < p.rows && output < p.outputs ? p.residual[row * p.outputs + output] : 0.f;
    }
#pragma unroll
    for (int half = 0; half < 2; half++) residual.weight[half] = first + 8 * half < p.outputs ? __bfloat162float(p.weight[first + 8 * half]) : 0.f;
  }

  __device__ __forceinline__ void add_to_residual(const Sums& sums, const Residual& residual, uint32_t tile, uint32_t warpgroup) const {
    const uint32_t lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, warp = threadIdx.x / 32;
    const uint32_t first = tile * kStreamOutputs + warpgroup * 64 + warp % 4 * 16;
    float x[N / 2];
#pragma unroll
    for (int i = 0; i < N / 2; i++) x[i] = residual.x[i] + __bfloat162float(__float2bfloat16(sums[i]));
#pragma unroll
    for (int i = 0; i < N / 8; i++) {
#pragma unroll
      for (int r = 0; r < 4; r++) {
        const uint32_t row = 8 * i + 2 * t + r % 2, output = first + g + r / 2 * 8;
        if (row < p.rows && output < p.outputs) p.residual[row * p.outputs + output] = x[4 * i + r];
      }
#pragma unroll
      for (int half = 0; half < 2; half++) {
        const uint32_t pair = movmatrix_trans(pack_bf16(x[4 * i + 2 * half] * residual.weight[half], x[4 * i + 2 * half + 1] * residual.weight[half]));
        const uint32_t row = 8 * i + g, output = first + 8 * half + 2 * t;
        if (row < p.rows && output < p.outputs) *reinterpret_cast<uint32_t*>(static_cast<bf16*>(p.y) + (row * p.outputs + output)) = pair;
      }
#pragma unroll
      for (int r = 0; r < 2; r++) {
        float square = x[4 * i + r] * x[4 * i + r] + x[4 * i + 2 + r] * x[4 * i + 2 + r];
#pragma unroll
        for (int k = 4; k < 32; k *= 2) square += __shfl_xor_sync(~0u, square, k);
        if (g == 0) p.squares[(tile * kConsumerWarps + warpgroup * 4 + warp % 4) * 16 + 8 * i + 2 * t + r] = square;
      }
    }
  }

  // Whether this warpgroup stores its part of the tile; `sums` is then the sum over all inputs.
  __device__ __forceinline__ bool merge(Sums& sums, uint32_t tile, uint32_t warpgroup) const {
    const uint32_t first = runs.run_of(tile * steps), last = runs.run_of((tile + 1) * steps - 1);
    constexpr uint32_t kRun = kStreamOutputs * N / 4;  // of a run, as four sums each
    float4* at = reinterpret_cast<float4*>(p.partial) + (mine * kRun + warpgroup * (kRun / 2) + threadIdx.x % 128);
    if (mine != first) {
#pragma unroll
      for (int i = 0; i < N / 8; i++)
        store_relaxed(at + i * 128, make_float4(present(sums[4 * i]), present(sums[4 * i + 1]), present(sums[4 * i + 2]), present(sums[4 * i + 3])));
      return false;
    }
    // As many loads in flight as a few registers hold.
    constexpr int kAtOnce = 64 / N;
#pragma unroll 1
    for (uint32_t left = last - first; left > 0; left -= min(left, static_cast<uint32_t>(kAtOnce))) {
      at += kRun;
      float4 v[kAtOnce][N / 8];
      bool there;
      do {
        there = true;
#pragma unroll
        for (int k = 0; k < kAtOnce; k++) {
#pragma unroll
          for (int i = 0; i < N / 8; i++) v[k][i] = static_cast<uint32_t>(k) < left ? load_relaxed(at + (k * kRun + i * 128)) : make_float4(0.f, 0.f, 0.f, 0.f);
        }
#pragma unroll
        for (int k = 0; k < kAtOnce; k++) {
#pragma unroll
          for (int i = 0; i < N / 8; i++) there &= is_present(v[k][i].x) & is_present(v[k][i].y) & is_present(v[k][i].z) & is_present(v[k][i].w);
        }
        if (!there) wait_for_other_ctas();
      } while (!there);
#pragma unroll
      for (int k = 0; k < kAtOnce; k++) {
        if (static_cast<uint32_t>(k) >= left) break;
#pragma unroll
        for (int i = 0; i < N / 8; i++) {
          sums[4 * i] += v[k][i].x;
          sums[4 * i + 1] += v[k][i].y;
          sums[4 * i + 2] += v[k][i].z;
          sums[4 * i + 3] += v[k][i].w;
          const float none = __uint_as_float(kEmpty);
          store_relaxed(at + (k * kRun + i * 128), make_float4(none, none, none, none));
        }
      }
      at += (kAtOnce - 1) * kRun;
    }
    return true;
  }

  static __device__ __forceinline__ bool is_present(float sum) { return __float_as_uint(sum) != kEmpty; }
  static __device__ __forceinline__ float present(float sum) { return is_present(sum) ? sum : __uint_as_float(0x7fffffff); }

  __device__ __forceinline__ void store(const Sums& sums, uint32_t tile, uint32_t warpgroup) const {
    const uint32_t lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const uint32_t first = tile * kStreamOutputs + warpgroup * 64 + threadIdx.x / 32 % 4 * 16;
    if (p.gated) {
      const uint32_t width = p.outputs / 2, output = first / 2 + 2 * t;
#pragma unroll
      for (int i = 0; i < N / 8; i++) {
        if (8 * i >= p.rows) continue;
        const float* const four = &sums[4 * i];
        const uint32_t pair = movmatrix_trans(gated_pair(make_float2(four[0], four[1]), make_float2(four[2], four[3]))), row = 8 * i + g;
        if (row < p.rows && output < width) *reinterpret_cast<uint32_t*>(static_cast<bf16*>(p.y) + (row * width + output)) = pair;
      }
      return;
    }
#pragma unroll
    for (int i = 0; i < N / 8; i++) {
      if (8 * i >= p.rows) continue;
      if (p.wide) {  // eight lanes write 32 bytes of a row
#pragma unroll
        for (int r = 0; r < 4; r++) {
          const uint32_t row = 8 * i + 2 * t + r % 2, output = first + g + r / 2 * 8;
          if (row < p.rows && output < p.outputs) static_cast<float*>(p.y)[row * p.outputs + output] = sums[4 * i + r];
        }
      } else {  // transposed: four lanes write 16 bytes of a row
#pragma unroll
        for (int half = 0; half < 2; half++) {
          const uint32_t pair = movmatrix_trans(pack_bf16(sums[4 * i + 2 * half], sums[4 * i + 2 * half + 1]));
          const uint32_t row = 8 * i + g, output = first + 8 * half + 2 * t;
          if (row < p.rows && output < p.outputs) *reinterpret_cast<uint32_t*>(static_cast<bf16*>(p.y) + (row * p.outputs + output)) = pair;
        }
      }
    }
  }
};

#endif

}  // namespace ebb
