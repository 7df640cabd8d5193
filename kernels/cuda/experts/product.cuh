// Products of experts that have few rows each (many.cuh: more): every warp takes slices of 16
// outputs of an expert times a tile of up to 16 of its rows, for all of which it unpacks weights
// once.
//
// Y^T = W X^T with m16n8k16, as in product/skinny.cu, but a warp has all inputs of its slice: one
// chain of sums over the inputs in order, whatever the tile. So a row's bits depend neither on the
// rows beside it nor on how many there are.
//
// Weights go through shared memory, where each warp has a ring of its own, which knows no ends of
// slices: bytes are asked for long before they are multiplied, and nobody waits for another warp.
// Where a CTA has a multiprocessor to itself, or ends, those of the second product come beside it
// and fill their rings while the first product ends.
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
// Bytes of a warp's ring: `FEW_RING` of the host.
constexpr uint32_t kExpertsRing = 8 << 10;

// What a lane reads of x: row g of eight of a tile's; beyond the last, the first: nobody looks at
// its sums.
struct RowOfX {
  const bf16* at;  // the lane's first input of what is read next
  int32_t left;    // inputs from it on; beyond them are zeros

  RowOfX() = default;
  // `eight`: which of the tile's.
  __device__ __forceinline__ RowOfX(const ExpertsParams& p, uint4 tile, uint32_t eight) {
    const uint32_t first = threadIdx.x % 4 * 8;  // the lane has eight of 32
    const uint32_t of_tile = eight * 8 + threadIdx.x % 32 / 4;
    const uint32_t place = tile.y + (of_tile < tile.z ? of_tile : 0);
    const uint64_t row = p.sorted ? p.sorted[place] : place;
    at = p.x + row * p.inputs + first;
    left = static_cast<int32_t>(p.inputs - first);
  }
  // Eight inputs, so far on.
  __device__ __forceinline__ uint4 read(int32_t further) const {
    return further < left ? *reinterpret_cast<const uint4*>(at + further) : make_uint4(0, 0, 0, 0);
  }
  __device__ __forceinline__ void advance(uint32_t inputs) {
    at += inputs, left -= static_cast<int32_t>(inputs);
  }
};

// What a lane has of a row for 64 inputs: of 32 each eight in turn, two pairs for each of two
// instructions.
struct ExpertInputs {
  uint4 of_block[2];

  __device__ __forceinline__ void read(RowOfX& x) {
#pragma unroll
    for (int block = 0; block < 2; block++) of_block[block] = x.read(block * 32);
    x.advance(64);
  }
};

// Adds the products of 32 inputs to the sums of EIGHTS times eight rows.
template <int EIGHTS>
__device__ __forceinline__ void add_products(const QuarterChunk& a, int block,
                                             const ExpertInputs (&x)[EIGHTS],
                                             float (&c)[EIGHTS][4]) {
#pragma unroll
  for (int i = 0; i < EIGHTS; i++)
    mma_bf16(c[i], a[0], x[i].of_block[block].x, x[i].of_block[block].y);
#pragma unroll
  for (int i = 0; i < EIGHTS; i++)
    mma_bf16(c[i], a[1], x[i].of_block[block].z, x[i].of_block[block].w);
}

// What formats share. A stage of the ring has a slice's weights of kInputs inputs; a lane's sums
// of a slice are c[eight rows][g, g + 8 of rows 2 t, 2 t + 1].
struct PlainExperts {
  static constexpr bool kIsPacked = false;
  static constexpr uint32_t kInputs = 64, kStageBytes = 16 * 128;

  // What a lane copies of a slice: a piece of 16 bytes of each of four rows. Eight lanes copy the
  // 128 bytes of a row, of which piece c is at c ^ turn(row): so neither those that write a row
  // nor those that read two halves of two rows meet in a bank.
  struct Source {
    const bf16 *low, *high;  // of rows lane / 8, and of 8 + lane / 8; 4 rows further on the others

    __device__ __forceinline__ Source(const ExpertsParams& p, uint32_t expert, uint32_t slice) {
      const uint32_t lane = threadIdx.x % 32, each = p.gated ? p.outputs / 2 : p.outputs;
      const uint32_t first = p.gated ? slice * 8 : slice * 16;
      // Beyond the last output, the first eight again: nobody looks at sums.
      const uint32_t second = p.gated || first + 8 >= each ? first : first + 8;
      const uint64_t of_expert = static_cast<uint64_t>(expert) * each,
                     of_opened = p.gated ? static_cast<uint64_t>(p.experts) * each : 0;
      const bf16* const w = reinterpret_cast<const bf16*>(p.weights) + lane % 8 * 8;
      low = w + (of_expert + first + lane / 8) * p.inputs;
      high = w + (of_opened + of_expert + second + lane / 8) * p.inputs;
    }
    // Copies what is of a step; steps follow each other.
    __device__ __forceinline__ void copy(const ExpertsParams& p, uint32_t step, uint32_t to) {
      const uint32_t lane = threadIdx.x % 32, piece = lane % 8;
      const uint32_t bytes = step * kInputs + piece * 8 < p.inputs ? 16 : 0;
#pragma unroll
      for (uint32_t i = 0; i < 4; i++) {
        const uint32_t row = lane / 8 + 4 * i;
        const void* const from = (i < 2 ? low : high) + i % 2 * 4 * p.inputs;
        cp_async16_zfill(to + row * 128 + (piece ^ turn(row)) * 16, bytes ? from : p.weights, bytes,
                         kEvictFirst);
      }
      low += kInputs, high += kInputs;
    }
  };
  static __device__ __forceinline__ uint32_t turn(uint32_t row) {
    return row % 2 * 4 + row / 2 % 4;
  }

  struct Scales {};

  template <int EIGHTS>
  static __device__ __forceinline__ void multiply(const uint8_t* stage, int, uint32_t lane, Scales,
                                                  const ExpertInputs (&x)[EIGHTS],
                                                  float (&c)[EIGHTS][4]) {
    const uint32_t g = lane / 4, t = lane % 4;
#pragma unroll
    for (int block = 0; block < 2; block++) {
      const uint8_t* const at = stage + g * 128 + ((block * 4 + t) ^ turn(g)) * 16;
      const uint4 low = *reinterpret_cast<const uint4*>(at),
                  high = *reinterpret_cast<const uint4*>(at + 8 * 128);
      const QuarterChunk a = {{low.x, high.x, low.y, high.y}, {low.z, high.z, low.w, high.w}};
      add_products(a, block, x, c);
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
  static constexpr uint32_t kInputs = kChunkInputs, kStageBytes = CHUNK::kSliceBytes;

  // What a lane copies of a slice: every 32nd piece of 16 bytes.
  struct Source {
    const uint8_t* from;
    uint32_t step_bytes;

    __device__ __forceinline__ Source(const ExpertsParams& p, uint32_t expert, uint32_t slice)
        : from(p.weights + expert * p.packed_each + static_cast<uint64_t>(slice) * kStageBytes +
               threadIdx.x % 32 * 16),
          step_bytes((p.outputs + 15) / 16 * kStageBytes) {}
    __device__ __forceinline__ void copy(const ExpertsParams&, uint32_t, uint32_t to) {
      const uint32_t piece = threadIdx.x % 32 * 16;
#pragma unroll
      for (uint32_t i = 0; i < kStageBytes; i += 512) {
        if (i + piece < kStageBytes) cp_async16(to + i + piece, from + i, kEvictFirst);
      }
      from += step_bytes;
    }
  };

  using Scales = typename CHUNK::Scales;

  // Of a half of a stage.
  template <int EIGHTS>
  static __device__ __forceinline__ void multiply(const uint8_t* stage, int half, uint32_t lane,
                                                  Scales& scales, const ExpertInputs (&x)[EIGHTS],
                                                  float (&c)[EIGHTS][4]) {
#pragma unroll
    for (int block = 0; block < 2; block++) {
      QuarterChunk a;
      CHUNK::dequantise(stage, half * 2 + block, lane, scales, a);
      add_products(a, block, x, c);
    }
  }
  // Of a row of a slice.
  static __device__ __forceinline__ float factor(const ExpertsParams& p, uint32_t expert,
                                                 uint32_t slice, uint32_t row) {
    const uint32_t at = slice * kChunkOutputs + row;
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

// Stores a slice's sums with a tile's rows.
template <class WEIGHTS, int EIGHTS>
__device__ __forceinline__ void store_slice(const ExpertsParams& p, uint4 tile, uint32_t slice,
                                            const float (&c)[EIGHTS][4]) {
  const uint32_t lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const uint32_t each = p.gated ? p.outputs / 2 : p.outputs;
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
  for (uint32_t i = 0; i < EIGHTS * 2; i++) {
    const uint32_t row = i / 2 * 8 + 2 * t + i % 2;
    if (row >= tile.z) continue;
    bf16* const y = p.y + static_cast<uint64_t>(tile.y + row) * each;
    const float low = c[i / 2][i % 2] * factor[0] + bias[0],
                high = c[i / 2][2 + i % 2] * factor[1] + bias[1];
    if (p.gated) {
      if (output[0] < each) y[output[0]] = __float2bfloat16(gated_by(p, low, high));
    } else {
      if (output[0] < each) y[output[0]] = __float2bfloat16(put_out(p, low));
      if (output[1] < each) y[output[1]] = __float2bfloat16(put_out(p, high));
    }
  }
}

// A number that is a type.
template <int N>
struct Number {
  static constexpr int kValue = N;
};

template <class WEIGHTS>
__device__ __forceinline__ void experts(const ExpertsParams& p) {
  EBB_DYNAMIC_SHARED(shared);
  constexpr uint32_t kStages = kExpertsRing / WEIGHTS::kStageBytes;
  static_assert(kStages >= 3);
  // Tiles are cut by the kernel before the first product, whose end that one waits for before it
  // lets the next one start. So the other product finds them at once, and asks for its weights
  // while those of the first are still multiplied.
  if (p.is_first()) wait_for_previous();
  let_next_start();
  const uint32_t slices = (p.outputs + 15) / 16,
                 steps = (p.inputs + WEIGHTS::kInputs - 1) / WEIGHTS::kInputs;
  const uint32_t units = __ldcg(&p.tiles[0].x) * slices;
  const uint32_t lane = computed_here(threadIdx.x % 32), warp = threadIdx.x / 32,
                 warps = gridDim.x * kExpertsWarps;
  // The warps of a CTA have units that follow each other and read the same rows. Where there is no
  // unit for every warp, CTAs share what is left evenly.
  auto unit_of = [&](uint32_t round) {
    const uint32_t before = round * warps, left = units - min(before, units);
    if (left >= warps) return before + blockIdx.x * kExpertsWarps + warp;
    const uint32_t first = left * blockIdx.x / gridDim.x, end = left * (blockIdx.x + 1) / gridDim.x;
    return first + warp < end ? before + first + warp : units;
  };
  auto tile_of = [&](uint32_t unit) { return __ldcg(p.tiles + 1 + unit / slices); };
  uint8_t* const ring = shared + warp * kExpertsRing;
  const uint32_t ring_address = smem_address(ring);
  uint32_t unit = unit_of(0), round = 0;
  if (unit >= units) {
    if (!p.is_first()) wait_for_previous();
    return;
  }
  uint4 tile = tile_of(unit);
  // What is asked for next: its unit, step and stage; and the unit after it and its expert.
  uint32_t unit_ahead = unit, step_ahead = 0, stage_ahead = 0;
  uint32_t unit_after, expert_after = 0, round_after = 0;
  typename WEIGHTS::Source source(p, tile.x, unit % slices);
  auto look_after = [&] {
    unit_after = unit_of(++round_after);
    if (unit_after < units) expert_after = tile_of(unit_after).x;
  };
  look_after();
  auto ask = [&] {
    if (unit_ahead < units) {
      source.copy(p, step_ahead, ring_address + stage_ahead * WEIGHTS::kStageBytes);
      if (++step_ahead == steps) {
        step_ahead = 0;
        unit_ahead = unit_after;
        if (unit_ahead < units) {
          source = {p, expert_after, unit_ahead % slices};
          look_after();
        }
      }
    }
    if (++stage_ahead == kStages) stage_ahead = 0;
    cp_async_commit();
  };
#pragma unroll 1
  for (uint32_t i = 0; i < kStages - 1; i++) ask();
  if (!p.is_first()) wait_for_previous();
  uint32_t stage = 0;
#pragma unroll 1
  while (unit < units) {
    const uint32_t next = unit_of(++round);
    const uint4 next_tile = next < units ? tile_of(next) : tile;
    auto next_stage = [&] {
      cp_async_wait<kStages - 2>();
      // All lanes' copies have come, and all have read what the next ones overwrite.
      __syncwarp();
      ask();
      const uint8_t* const now = ring + stage * WEIGHTS::kStageBytes;
      if (++stage == kStages) stage = 0;
      return now;
    };
    auto multiply = [&](auto eights) {
      constexpr int kEights = decltype(eights)::kValue;
      float c[kEights][4] = {};
      RowOfX rows[kEights];
      ExpertInputs x[2][kEights];
      auto read = [&](ExpertInputs(&to)[kEights]) {
#pragma unroll
        for (int i = 0; i < kEights; i++) to[i].read(rows[i]);
      };
#pragma unroll
      for (int i = 0; i < kEights; i++) rows[i] = {p, tile, static_cast<uint32_t>(i)};
      read(x[0]);
      if constexpr (!WEIGHTS::kIsPacked) {
        // Twice in a loop, inputs need no moves. Of packed weights that is more code than a quarter
        // of a multiprocessor keeps at hand, and takes 1.1 times as long.
#pragma unroll 1
        for (uint32_t step = 0; step < steps; step += 2) {
          const uint8_t* now = next_stage();
          read(x[1]);
          WEIGHTS::multiply(now, 0, lane, {}, x[0], c);
          if (step + 1 == steps) break;
          now = next_stage();
          read(x[0]);
          WEIGHTS::multiply(now, 0, lane, {}, x[1], c);
        }
      } else if constexpr (kEights == 1) {
        read(x[1]);
#pragma unroll 1
        for (uint32_t step = 0; step < steps; step++) {
          const uint8_t* const now = next_stage();
          typename WEIGHTS::Scales scales;
          const ExpertInputs first[1] = {x[0][0]}, second[1] = {x[1][0]};
          read(x[0]), read(x[1]);
          WEIGHTS::multiply(now, 0, lane, scales, first, c);
          WEIGHTS::multiply(now, 1, lane, scales, second, c);
        }
      } else {
        // There are registers for half a stage's inputs ahead.
#pragma unroll 1
        for (uint32_t step = 0; step < steps; step++) {
          const uint8_t* const now = next_stage();
          typename WEIGHTS::Scales scales;
          read(x[1]);
          WEIGHTS::multiply(now, 0, lane, scales, x[0], c);
          read(x[0]);
          WEIGHTS::multiply(now, 1, lane, scales, x[1], c);
        }
      }
      store_slice<WEIGHTS>(p, tile, unit % slices, c);
    };
    if (tile.z <= 8)
      multiply(Number<1>{});
    else
      multiply(Number<2>{});
    unit = next, tile = next_tile;
  }
}

}  // namespace ebb

// Grid: any; the number is that of a tile's rows.
#define EBB_EXPERTS(FORMAT, WEIGHTS)                                                        \
  EBB_KERNEL_EARLY(experts_##FORMAT##_16, ebb::ExpertsParams, ebb::kExpertsWarps * 32, 2) { \
    ebb::experts<WEIGHTS>(p);                                                               \
  }
#define EBB_PACKED_EXPERTS(FORMAT, CHUNK) \
  EBB_EXPERTS(FORMAT, ebb::PackedExperts<ebb::CHUNK::InTurn>)
