// Products of experts that have more rows each than product.cuh is for: a CTA takes 256 outputs of
// an expert (16 slices) times a tile of 32 or 128 rows, and both sides pass through a ring of
// stages in shared memory, 64 inputs a stage.
//
// Y^T = W X^T with m16n8k16, summed as in product.cuh: the same inputs stand in the same places of
// the same instructions in the same order, from zero. So a row's bits do not depend on which of the
// kernels a step takes. Of eight warps each has two slices; of tiles of 128 rows four, and half of
// the rows. With 32 rows a multiprocessor holds two CTAs: one multiplies while the other waits at a
// barrier, where experts have too few rows for the other tile's many products.
//
// CTAs are persistent. Copies run ahead of products by the stages of the ring, across the borders
// of units: the next unit's are under way while this one's sums are written.
#pragma once
#include "many_weights.cuh"

namespace ebb {

// Which stages are copied next.
template <class WEIGHTS, uint32_t ROWS>
struct ManyLoader {
  static constexpr uint32_t kCopies = ROWS * 8 / kManyThreads;  // of x, by a thread
  static constexpr uint32_t kNoRow = ~0u;

  uint32_t unit, step = 0, slot = 0;
  uint32_t rows[kCopies];  // of x
  typename WEIGHTS::Source weights;

  __device__ __forceinline__ explicit ManyLoader(uint32_t first) : unit(first) {}

  // Copies what comes next, if anything does, as a group.
  __device__ __forceinline__ void next(const ExpertsParams& p, uint32_t units, uint32_t steps,
                                       uint32_t shared) {
    if (unit < units) {
      if (step == 0) begin(p);
      const uint32_t stage = shared + slot * (WEIGHTS::kBytes + ROWS * kManyRowBytes);
      weights.copy(p, step, stage);
      const uint32_t row = threadIdx.x / 8, piece = threadIdx.x % 8;
      const uint32_t to = stage + WEIGHTS::kBytes + many_at(row, piece);
      const uint32_t input = step * kManyInputs + piece * 8;
#pragma unroll
      for (uint32_t i = 0; i < kCopies; i++) {
        const bool has = rows[i] != kNoRow && input < p.inputs;
        const uint64_t at = has ? static_cast<uint64_t>(rows[i]) * p.inputs + input : 0;
        cp_async16_zfill(to + i * kManyThreads / 8 * kManyRowBytes, p.x + at, has ? 16 : 0);
      }
      slot = slot + 1 == p.stages ? 0 : slot + 1;
      if (++step == steps) step = 0, unit += gridDim.x;
    }
    cp_async_commit();
  }

 private:
  __device__ __forceinline__ void begin(const ExpertsParams& p) {
    const uint32_t slabs = (p.outputs + kManyOutputs - 1) / kManyOutputs;
    const uint4 tile = p.tiles[1 + unit / slabs];
    weights.begin(p, tile.x, unit % slabs);
#pragma unroll
    for (uint32_t i = 0; i < kCopies; i++) {
      const uint32_t row = threadIdx.x / 8 + i * kManyThreads / 8, place = tile.y + row;
      rows[i] = row >= tile.z ? kNoRow : p.sorted ? p.sorted[place] : place;
    }
  }
};

// Sums of a warp: c[slice][8 rows][g, g + 8 of rows 2 t, 2 t + 1].
template <int SLICES, int EIGHTS>
using ManySums = float[SLICES][EIGHTS][4];

// Adds the products of a stage for slices from `slice` on and rows from `row` on.
template <class WEIGHTS, int SLICES, int EIGHTS>
__device__ __forceinline__ void multiply_stage(const ExpertsParams& p, const uint8_t* stage,
                                               uint32_t slice, uint32_t row,
                                               ManySums<SLICES, EIGHTS>& c) {
#pragma unroll
  for (uint32_t block = 0; block < 2; block++) {
    QuarterChunk a[SLICES];
#pragma unroll
    for (uint32_t s = 0; s < SLICES; s++) WEIGHTS::fragments(p, stage, slice + s, block, a[s]);
#pragma unroll
    for (uint32_t n = 0; n < EIGHTS; n++) {
      const uint4 x = piece_in_turn(stage + WEIGHTS::kBytes, row + n * 8, block);
#pragma unroll
      for (uint32_t k = 0; k < 2; k++) {
#pragma unroll
        for (uint32_t s = 0; s < SLICES; s++)
          mma_bf16(c[s][n], a[s][k], k == 0 ? x.x : x.z, k == 0 ? x.y : x.w);
      }
    }
  }
}

// Writes a warp's outputs. `staging`: 1 KiB of its own, by which rows get their outputs in whole
// pieces of 16 bytes.
template <class WEIGHTS, int SLICES, int EIGHTS>
__device__ __forceinline__ void write_many(const ExpertsParams& p, uint4 tile, uint32_t slice,
                                           uint32_t first_row, uint8_t* staging,
                                           const ManySums<SLICES, EIGHTS>& c) {
  const uint32_t lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const uint32_t each = p.gated ? p.outputs / 2 : p.outputs;
  float factor[SLICES][2], bias[SLICES][2];
#pragma unroll
  for (uint32_t s = 0; s < SLICES; s++) {
#pragma unroll
    for (uint32_t i = 0; i < 2; i++) {
      const ExpertOutput output(p, tile.x, slice + s, g, i);
      factor[s][i] = WEIGHTS::kIsPacked && output.is_there()
                         ? WEIGHTS::factor(p, tile.x, slice + s, g + 8 * i)
                         : 1.f;
      bias[s][i] = output.bias(p);
    }
  }
  const uint32_t pieces = p.gated ? SLICES : 2 * SLICES, piece = lane % 8;
  const uint32_t output = (p.gated ? slice * 8 : slice * 16) + piece * 8;
#pragma unroll
  for (uint32_t n = 0; n < EIGHTS; n++) {
    if (first_row + n * 8 >= tile.z) continue;
#pragma unroll
    for (uint32_t s = 0; s < SLICES; s++) {
      float low[2], high[2];
#pragma unroll
      for (uint32_t i = 0; i < 2; i++) {
        low[i] = c[s][n][i] * factor[s][0] + bias[s][0];
        high[i] = c[s][n][2 + i] * factor[s][1] + bias[s][1];
      }
      auto keep = [&](uint32_t at, float first, float second) {
        const uint32_t of_row = movmatrix_trans(pack_bf16(first, second));
        *reinterpret_cast<uint32_t*>(staging + g * 128 + (at ^ g) * 16 + t * 4) = of_row;
      };
      if (p.gated) {
        keep(s, gated_by(p, low[0], high[0]), gated_by(p, low[1], high[1]));
      } else {
        keep(2 * s, put_out(p, low[0]), put_out(p, low[1]));
        keep(2 * s + 1, put_out(p, high[0]), put_out(p, high[1]));
      }
    }
    __syncwarp();
#pragma unroll
    for (uint32_t i = 0; i < 8; i += 4) {
      const uint32_t of_eight = i + lane / 8, row = first_row + n * 8 + of_eight;
      if (row >= tile.z || piece >= pieces || output >= each) continue;
      const uint4 v =
          *reinterpret_cast<const uint4*>(staging + of_eight * 128 + (piece ^ of_eight) * 16);
      *reinterpret_cast<uint4*>(p.y + static_cast<uint64_t>(tile.y + row) * each + output) = v;
    }
    __syncwarp();
  }
}

template <class WEIGHTS, uint32_t ROWS>
__device__ __forceinline__ void experts_many(const ExpertsParams& p) {
  constexpr bool kByRows = ROWS > 64;
  constexpr int kSlices = kByRows ? 4 : 2, kEights = ROWS / (kByRows ? 16 : 8);
  EBB_DYNAMIC_SHARED(shared);
  const uint32_t ring = smem_address(shared), warp = threadIdx.x / 32;
  const uint32_t slices = (p.outputs + 15) / 16, slabs = (slices + kManySlices - 1) / kManySlices;
  const uint32_t units = p.tiles[0].x * slabs, steps = (p.inputs + kManyInputs - 1) / kManyInputs;
  ManyLoader<WEIGHTS, ROWS> loader(blockIdx.x);
  for (uint32_t i = 1; i < p.stages; i++) loader.next(p, units, steps, ring);
  uint32_t slot = 0;
#pragma unroll 1
  for (uint32_t unit = blockIdx.x; unit < units; unit += gridDim.x) {
    const uint4 tile = p.tiles[1 + unit / slabs];
    // Warps w and w + 4 are on the same quarter of a multiprocessor and share its tensor core:
    // where a tile has only half of its rows, no quarter is idle.
    const uint32_t slice_of_unit = kByRows ? warp % 4 * 4 : warp * 2,
                   row = kByRows ? warp / 4 * (ROWS / 2) : 0;
    const bool has_work = row < tile.z && unit % slabs * kManySlices + slice_of_unit < slices;
    ManySums<kSlices, kEights> c = {};
    uint8_t* stage = shared;
#pragma unroll 1
    for (uint32_t step = 0; step < steps; step++) {
      wait_for_stage(p.stages);
      // Behind it all see the stage, and nobody reads that before it any more, which is filled now.
      __syncthreads();
      loader.next(p, units, steps, ring);
      stage = shared + slot * (WEIGHTS::kBytes + ROWS * kManyRowBytes);
      if (has_work) multiply_stage<WEIGHTS>(p, stage, slice_of_unit, row, c);
      slot = slot + 1 == p.stages ? 0 : slot + 1;
    }
    // The stage that was read last is nobody's until the next barrier.
    __syncthreads();
    // Computed again: kept, it is a register too many.
    const uint32_t slice = unit % slabs * kManySlices + slice_of_unit;
    if (has_work) write_many<WEIGHTS>(p, tile, slice, row, stage + warp * 1024, c);
  }
}

}  // namespace ebb

// Grid: any, at most as many CTAs as run at once. The last number is that of a tile's rows.
#define EBB_EXPERTS_MANY(FORMAT, WEIGHTS)                                        \
  EBB_KERNEL(experts_##FORMAT##_32, ebb::ExpertsParams, ebb::kManyThreads, 2) {  \
    ebb::experts_many<WEIGHTS, 32>(p);                                           \
  }                                                                              \
  EBB_KERNEL(experts_##FORMAT##_128, ebb::ExpertsParams, ebb::kManyThreads, 1) { \
    ebb::experts_many<WEIGHTS, 128>(p);                                          \
  }
#define EBB_PACKED_EXPERTS_MANY(FORMAT, CHUNK) \
  EBB_EXPERTS_MANY(FORMAT, ebb::ManyPacked<ebb::CHUNK::InTurn>)
