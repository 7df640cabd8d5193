// Products of experts that have few rows each (many.cuh: many): every warp takes slices of 16
// outputs of an expert times a tile of its rows, weights going straight from memory into registers.
//
// Y^T = W X^T with m16n8k16, as in product/skinny.cu, but a warp has all inputs of its slice: one
// chain of sums over the inputs in order, whatever the tile. So a row's bits depend neither on the
// rows beside it nor on how many there are.
//
// A slice of gates has eight of them and, in the other half of the m side, the eight outputs that
// they open, so that a lane has both.
#pragma once
#include "../common/activation.cuh"
#include "../common/kernel.cuh"
#include "../product/packed.cuh"

namespace ebb {

struct ExpertsParams {
  const bf16* x;           // [rows][inputs]
  const uint32_t* sorted;  // of each place, its row of x; null: places are rows
  const uint4* tiles;      // [0].x: how many; then expert, first place and count of each
  const uint8_t* weights;  // bf16 [experts][outputs][inputs], of gates and then of what they open;
                           // or packed, one expert behind the other
  const float* factors;    // of packed ones: [experts][factors_each]
  const bf16* bias;        // [experts][outputs], gates likewise; or null
  bf16* y;                 // [places][outputs], or half of that if gated
  uint64_t packed_each;    // bytes of an expert's packed weights
  uint32_t factors_each;
  uint32_t experts;
  uint32_t inputs;   // a multiple of 8
  uint32_t outputs;  // of an expert, a multiple of 8; of gates and what they open, of 16
  uint32_t gated;    // 0, or the activation of gates (common/activation.cuh): GELU or SiLU
  float limit;       // 0: gates are as they are; else silu's, clamped at it
  float alpha;
  uint32_t stages;  // of the ring of many.cuh, 2 to 4
  uint32_t plain;   // whether outputs without gates go through relu2
  uint32_t reserved;

  // Of the two products of an expert.
  __device__ __forceinline__ bool is_first() const { return gated || plain; }
};
static_assert(sizeof(ExpertsParams) == 104);

constexpr int kExpertsWarps = 8;
// Blocks of 32 inputs whose loads are in flight together, for so many eights of rows.
template <int TILES>
constexpr int kExpertsBatch = TILES == 4 ? 2 : 4;

// How many blocks ahead their weights are asked for, to be brought to L2; even. (16 take 5 to 10 %
// longer on an H100, 64 half as long again.)
constexpr uint32_t kExpertsAhead = 8;

// The rows of x that a lane reads.
template <int TILES>
struct ExpertRows {
  const bf16* row[TILES];  // row g of each eight; beyond the last, the first: nobody looks at sums

  __device__ __forceinline__ ExpertRows(const ExpertsParams& p, uint4 tile) {
    const uint32_t g = threadIdx.x % 32 / 4;
#pragma unroll
    for (uint32_t i = 0; i < TILES; i++) {
      const uint32_t n = i * 8 + g, place = tile.y + (n < tile.z ? n : 0);
      const uint64_t at = p.sorted ? p.sorted[place] : place;
      row[i] = p.x + at * p.inputs;
    }
  }
};

// What formats share: sums of a slice with a tile's rows, c[8 rows][g, g + 8 of rows 2 t, 2 t + 1].
struct PlainExperts {
  static constexpr bool kIsPacked = false;

  // The two outputs that a lane of eight has of a slice, as rows of all experts' weights.
  struct Outputs {
    const bf16 *low, *high;

    __device__ __forceinline__ Outputs(const ExpertsParams& p, uint32_t expert, uint32_t slice,
                                       uint32_t g) {
      const uint32_t each = p.gated ? p.outputs / 2 : p.outputs;
      // Beyond the last output, the last again: nobody looks at sums.
      const uint32_t low_output = p.gated ? slice * 8 + g : slice * 16 + g,
                     high_output = p.gated ? low_output : min(low_output + 8, each - 1);
      const uint64_t of_expert = static_cast<uint64_t>(expert) * each,
                     of_opened = p.gated ? static_cast<uint64_t>(p.experts) * each : 0;
      const bf16* const w = reinterpret_cast<const bf16*>(p.weights);
      low = w + (of_expert + low_output) * p.inputs;
      high = w + (of_opened + of_expert + high_output) * p.inputs;
    }
  };

  // Asks for the beginning of a slice.
  static __device__ __forceinline__ void prefetch(const ExpertsParams& p, uint32_t expert,
                                                  uint32_t slice) {
    const uint32_t lane = threadIdx.x % 32;
    const Outputs outputs(p, expert, slice, lane / 4);
    // As far as is not asked for while a slice is multiplied.
    for (uint32_t input = lane % 4 * 64; input < min(p.inputs, kExpertsAhead * 32); input += 256) {
      prefetch_streamed(outputs.low + input);
      prefetch_streamed(outputs.high + input);
    }
  }

  template <int TILES>
  static __device__ __forceinline__ void multiply(const ExpertsParams& p, uint32_t expert,
                                                  uint32_t slice, const ExpertRows<TILES>& x,
                                                  float (&c)[TILES][4]) {
    const uint32_t lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const Outputs outputs(p, expert, slice, g);
    constexpr int kBatch = kExpertsBatch<TILES>;
    const uint64_t policy = policy_evict_first();
    const uint4 *low_at = reinterpret_cast<const uint4*>(outputs.low) + t,
                *high_at = reinterpret_cast<const uint4*>(outputs.high) + t;
    const uint4* row_at[TILES];
#pragma unroll
    for (int n = 0; n < TILES; n++) row_at[n] = reinterpret_cast<const uint4*>(x.row[n]) + t;
    uint4 a[kBatch], b[kBatch];
    auto load = [&](int i, int block) {
      a[i] = load_streamed(low_at + block * 4, policy);
      b[i] = load_streamed(high_at + block * 4, policy);
    };
    auto multiply_block = [&](int i, const uint4(&v)[TILES]) {
      const uint32_t first[4] = {a[i].x, b[i].x, a[i].y, b[i].y},
                     second[4] = {a[i].z, b[i].z, a[i].w, b[i].w};
#pragma unroll
      for (int n = 0; n < TILES; n++) {
        mma_bf16(c[n], first, v[n].x, v[n].y);
        mma_bf16(c[n], second, v[n].z, v[n].w);
      }
    };
    // Lines of 64 inputs are on their way to L2 long before: of each output one lane asks.
    const uint4* const of_lane = t == 0 ? low_at : t == 1 ? high_at - 1 : nullptr;
    auto prefetch_ahead = [&](uint32_t block) {
      if (of_lane && (block + kExpertsAhead) * 32 < p.inputs)
        prefetch_streamed(of_lane + (block + kExpertsAhead) * 4);
    };
    const uint32_t batches = p.inputs / (32 * kBatch);
    if (batches > 0) {
#pragma unroll
      for (int i = 0; i < kBatch; i++) load(i, i);
    }
#pragma unroll 1
    for (uint32_t batch = 1; batch <= batches; batch++) {
#pragma unroll
      for (int i = 0; i < kBatch; i += 2) prefetch_ahead((batch - 1) * kBatch + i);
#pragma unroll
      for (int i = 0; i < kBatch; i++) {
        uint4 v[TILES];
#pragma unroll
        for (int n = 0; n < TILES; n++) v[n] = load_in_turn(row_at[n] + i * 4);
        multiply_block(i, v);
        if (batch < batches) load(i, kBatch + i);
      }
      low_at += kBatch * 4, high_at += kBatch * 4;
#pragma unroll
      for (int n = 0; n < TILES; n++) row_at[n] += kBatch * 4;
    }
    // What is left is no whole batch, and its last block may not be whole.
    const uint32_t rest = p.inputs - batches * 32 * kBatch;
    if (rest == 0) return;
    const uint4 zero = make_uint4(0, 0, 0, 0);
#pragma unroll
    for (int i = 0; i < kBatch; i++) {
      const bool inside = i * 32 + 8 * t < rest;
      a[i] = inside ? load_streamed(low_at + i * 4, policy) : zero;
      b[i] = inside ? load_streamed(high_at + i * 4, policy) : zero;
    }
#pragma unroll
    for (int i = 0; i < kBatch; i++) {
      const bool inside = i * 32 + 8 * t < rest;
      uint4 v[TILES];
#pragma unroll
      for (int n = 0; n < TILES; n++) v[n] = inside ? load_in_turn(row_at[n] + i * 4) : zero;
      multiply_block(i, v);
    }
  }
  static __device__ __forceinline__ float factor(const ExpertsParams&, uint32_t, uint32_t,
                                                 uint32_t) {
    return 1.f;
  }
};

template <class CHUNK>
struct PackedExperts {
  static constexpr bool kIsPacked = true;

  // An expert's weights as a matrix of their own.
  struct Matrix {
    const uint8_t* packed;
    uint32_t inputs, outputs;
    bool gated;

    __device__ __forceinline__ Matrix(const ExpertsParams& p, uint32_t expert)
        : packed(p.weights + expert * p.packed_each),
          inputs(p.inputs),
          outputs(p.outputs),
          gated(p.gated != 0) {}
  };

  // Steps whose weights are on their way to L2.
  static constexpr uint32_t kAhead = 6;

  // Asks for the weights of a step, if there is such a step.
  static __device__ __forceinline__ void prefetch_step(const Matrix& matrix, uint32_t slice,
                                                       uint32_t step) {
    const uint32_t lane = threadIdx.x % 32;
    if (step * kChunkInputs >= matrix.inputs) return;
    if constexpr (CHUNK::kInRows) {
      const uint32_t output = output_of(slice, lane, matrix.outputs, matrix.gated),
                     width = (matrix.inputs + 15) / 16 * 16;
      if (lane < 16 && output < matrix.outputs)
        prefetch_streamed(matrix.packed + static_cast<uint64_t>(output) * width +
                          step * kChunkInputs);
    } else {
      const uint32_t slices = (matrix.outputs + 15) / 16;
      const uint64_t chunk = (static_cast<uint64_t>(step) * slices + slice) * CHUNK::kSliceBytes;
      if (lane * 128 < CHUNK::kSliceBytes) prefetch_streamed(matrix.packed + chunk + lane * 128);
    }
  }

  // Asks for the beginning of a slice.
  static __device__ __forceinline__ void prefetch(const ExpertsParams& p, uint32_t expert,
                                                  uint32_t slice) {
    const Matrix matrix(p, expert);
    for (uint32_t step = 0; step < kAhead; step++) prefetch_step(matrix, slice, step);
  }

  template <int TILES>
  static __device__ __forceinline__ void multiply(const ExpertsParams& p, uint32_t expert,
                                                  uint32_t slice, const ExpertRows<TILES>& x,
                                                  float (&c)[TILES][4]) {
    const uint32_t lane = threadIdx.x % 32, t = lane % 4;
    const Matrix matrix(p, expert);
    const StoredSlice<CHUNK> weights(matrix, slice, lane);
    typename CHUNK::Scales scales;
    const uint32_t steps = (p.inputs + kChunkInputs - 1) / kChunkInputs;
#pragma unroll 1
    for (uint32_t step = 0; step < steps; step++) {
      prefetch_step(matrix, slice, step + kAhead);
#pragma unroll
      for (int quarter = 0; quarter < 4; quarter++) {
        QuarterChunk a;
        weights.dequantise(step, quarter, lane, scales, a);
#pragma unroll
        for (uint32_t k = 0; k < 2; k++) {
          const uint32_t input = step * kChunkInputs + quarter * 32 + k * 16 + 2 * t;
#pragma unroll
          for (int n = 0; n < TILES; n++) {
            auto pair = [&](uint32_t at) {
              return at < p.inputs ? *reinterpret_cast<const uint32_t*>(x.row[n] + at) : 0u;
            };
            mma_bf16(c[n], a[k], pair(input), pair(input + 8));
          }
        }
      }
    }
  }
  // Of a row of a slice.
  static __device__ __forceinline__ float factor(const ExpertsParams& p, uint32_t expert,
                                                 uint32_t slice, uint32_t row) {
    const uint32_t at = StoredSlice<CHUNK>::factor(slice, row, p.outputs, p.gated != 0);
    return p.factors[static_cast<uint64_t>(expert) * p.factors_each + at];
  }
};

// What a gate lets through of what it opens.
__device__ __forceinline__ float gated_by(const ExpertsParams& p, float gate, float up) {
  if (p.limit > 0.f) {
    gate = fminf(gate, p.limit);
    up = fminf(fmaxf(up, -p.limit), p.limit);
    return (up + 1.f) * gate / (1.f + __expf(-p.alpha * gate));
  }
  return (p.gated == kGeluTanh ? gelu_tanh(gate) : silu(gate)) * up;
}

// What the first product of experts without gates puts out, or the second one. It stands in code a
// hundred times, so it may not be any activation: that took 1.7 times as long for many rows.
__device__ __forceinline__ float put_out(const ExpertsParams& p, float x) {
  return p.plain ? relu2(x) : x;
}

// One of the two outputs that a lane of eight has of a slice: row g, or row g + 8 for i = 1.
struct ExpertOutput {
  uint32_t expert, i, each, output;

  __device__ __forceinline__ ExpertOutput(const ExpertsParams& p, uint32_t expert, uint32_t slice,
                                          uint32_t g, uint32_t i)
      : expert(expert),
        i(i),
        each(p.gated ? p.outputs / 2 : p.outputs),
        output(p.gated ? slice * 8 + g : slice * 16 + g + 8 * i) {}
  __device__ __forceinline__ bool is_there() const { return output < each; }
  __device__ __forceinline__ float bias(const ExpertsParams& p) const {
    const uint64_t of_all = p.gated ? i * static_cast<uint64_t>(p.experts) + expert : expert;
    return p.bias && is_there() ? __bfloat162float(p.bias[of_all * each + output]) : 0.f;
  }
};

template <class WEIGHTS, int TILES>
__device__ __forceinline__ void experts(const ExpertsParams& p) {
  // Tiles are cut by the kernel before the first product, whose end that one waits for before it
  // lets the next one start. So the other product finds them at once, and asks for its weights
  // while those of the first are still multiplied.
  if (p.is_first()) wait_for_previous();
  let_next_start();
  const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
  const uint32_t each = p.gated ? p.outputs / 2 : p.outputs;
  const uint32_t slices = (p.outputs + 15) / 16;
  const uint32_t tiles = __ldcg(&p.tiles[0].x);
  const uint32_t warps = gridDim.x * kExpertsWarps, units = tiles * slices;
  // Where there is no unit for every warp, multiprocessors share them evenly; else the warps of a
  // CTA read the same rows.
  const bool few = units <= warps;
  uint32_t unit = few ? warp * gridDim.x + blockIdx.x : blockIdx.x * kExpertsWarps + warp;
  auto tile_of = [&](uint32_t unit) { return __ldcg(p.tiles + 1 + unit / slices); };
  if (unit < units) WEIGHTS::prefetch(p, tile_of(unit).x, unit % slices);
  if (!p.is_first()) wait_for_previous();
#pragma unroll 1
  for (; unit < units; unit += warps) {
    const uint32_t slice = unit % slices, next = unit + warps;
    const uint4 tile = tile_of(unit);
    // The next unit's weights are on their way while this one's are multiplied.
    if (next < units) WEIGHTS::prefetch(p, tile_of(next).x, next % slices);
    float c[TILES][4] = {};
    const ExpertRows<TILES> x(p, tile);
    WEIGHTS::template multiply<TILES>(p, tile.x, slice, x, c);
    // Of the lane's two outputs.
    uint32_t output[2];
    float factor[2], bias[2];
#pragma unroll
    for (uint32_t i = 0; i < 2; i++) {
      const ExpertOutput of(p, tile.x, slice, g, i);
      output[i] = of.output;
      factor[i] =
          WEIGHTS::kIsPacked && of.is_there() ? WEIGHTS::factor(p, tile.x, slice, g + 8 * i) : 1.f;
      bias[i] = of.bias(p);
    }
#pragma unroll
    for (uint32_t n = 0; n < TILES; n++) {
#pragma unroll
      for (uint32_t i = 0; i < 2; i++) {
        const uint32_t row = n * 8 + 2 * t + i;
        if (row >= tile.z) continue;
        bf16* const y = p.y + static_cast<uint64_t>(tile.y + row) * each;
        const float low = c[n][i] * factor[0] + bias[0], high = c[n][2 + i] * factor[1] + bias[1];
        if (p.gated) {
          if (output[0] < each) y[output[0]] = __float2bfloat16(gated_by(p, low, high));
        } else {
          if (output[0] < each) y[output[0]] = __float2bfloat16(put_out(p, low));
          if (output[1] < each) y[output[1]] = __float2bfloat16(put_out(p, high));
        }
      }
    }
  }
}

}  // namespace ebb

// Grid: any; the number is that of a tile's rows.
#define EBB_EXPERTS(FORMAT, WEIGHTS)                                                        \
  EBB_KERNEL_EARLY(experts_##FORMAT##_8, ebb::ExpertsParams, ebb::kExpertsWarps * 32, 2) {  \
    ebb::experts<WEIGHTS, 1>(p);                                                            \
  }                                                                                         \
  EBB_KERNEL_EARLY(experts_##FORMAT##_32, ebb::ExpertsParams, ebb::kExpertsWarps * 32, 2) { \
    ebb::experts<WEIGHTS, 4>(p);                                                            \
  }                                                                                         \
  EBB_KERNEL_EARLY(experts_##FORMAT##_64, ebb::ExpertsParams, ebb::kExpertsWarps * 32, 1) { \
    ebb::experts<WEIGHTS, 8>(p);                                                            \
  }
#define EBB_PACKED_EXPERTS(FORMAT, CHUNK) EBB_EXPERTS(FORMAT, ebb::PackedExperts<ebb::CHUNK>)
