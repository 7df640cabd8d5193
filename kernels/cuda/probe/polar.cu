// Query-key products over polar keys in three ways, and over 16-bit keys for comparison; for
// measurements alone (`ebb-bench polar`). One KV head of 128 channels, four queries, blocks of 128
// tokens whose records lie side by side. Nothing but the products: a CTA streams blocks, a warp 16
// tokens of each, and what is written is the greatest product of each block and query.
//
// PolarQuant (arXiv 2502.00527) writes the product with a pair of radius r and angle code c as r
// T[c], T[c] = qx cos(c) + qy sin(c): sixteen values of T for each pair of the group and each
// query, looked up instead of multiplied out. Its released code fits angles to blocks (polar44), so
// that T is made anew for each; the paper's directions are the same for all (polar44g64), and so is
// T.
#include "../common/kernel.cuh"
#include "src/formats/papers/polar/published.cuh"

namespace ebb {

struct PolarProductParams {
  const uint8_t* keys;      // records of polar44 or polar44g64, or rows [128][128] bf16
  const uint16_t* queries;  // [4][128] bf16
  float* most;              // [blocks][4]
  float* products;          // [blocks][4][128], or null
  uint32_t blocks;
  uint32_t reserved;
};
static_assert(sizeof(PolarProductParams) == 40);

namespace polar_probe {

constexpr uint32_t kDim = 128, kPairs = 64, kQueries = 4, kThreads = 256, kWarps = kThreads / 32;
constexpr uint32_t kRecord = 4 * kDim + 2 * 32 * kDim;
// Of polar44g64: greatest radii of two groups of 64 tokens, then the planes.
constexpr uint32_t kGridMeta = 2 * 2 * kPairs, kGridRecord = kGridMeta + 2 * 32 * kDim;

// What a lane holds of its warp's 16 tokens: codes as they lie, of pairs 16 c + 8 h + 2 t + e, and
// metadata of radii.
struct Codes16 {
  uint4 angles, radii;
};
__device__ __forceinline__ Codes16 load_codes16(const uint8_t* record, uint32_t meta = 4 * kDim) {
  const uint4* const planes = reinterpret_cast<const uint4*>(record + meta);
  return {__ldg(planes + threadIdx.x), __ldg(planes + 32 * kDim / 16 + threadIdx.x)};
}

// Zero and range of the angles of pair tid / 4, which has four threads, and four angles for each.
// Needed first, so loaded a block ahead.
__device__ __forceinline__ uint32_t load_angle_cells(const PolarProductParams& p, uint32_t block) {
  if (block >= p.blocks) return 0;
  const uint16_t* const meta =
      reinterpret_cast<const uint16_t*>(p.keys + static_cast<uint64_t>(block) * kRecord) +
      threadIdx.x / 4;
  return __ldg(meta) | static_cast<uint32_t>(__ldg(meta + kPairs)) << 16;
}

// Those of the radii of a lane's sixteen pairs, fp16x2, by 2 c + h.
struct RadiusCells {
  uint32_t zero[8], range[8];
};
__device__ __forceinline__ RadiusCells load_radius_cells(const uint8_t* record) {
  RadiusCells cells;
  const uint32_t* const radii =
      reinterpret_cast<const uint32_t*>(record + 2 * kDim) + threadIdx.x % 4;
#pragma unroll
  for (int i = 0; i < 8; i++)
    cells.zero[i] = __ldg(radii + 4 * i), cells.range[i] = __ldg(radii + kPairs / 2 + 4 * i);
  return cells;
}

// Radii of a pair of columns, fp16x2: the middle of their cells. `codes` has one in the low bits of
// either half.
__device__ __forceinline__ uint32_t radius_pair(uint32_t codes, uint32_t zero, uint32_t step) {
  constexpr uint32_t k1024 = 0x64006400u, kOne = 0x3c003c00u, kMinus1023Half = 0xe3ffe3ffu;
  return fma_f16x2(fma_f16x2((codes & 0x000f000fu) | k1024, kOne, kMinus1023Half), step, zero);
}
__device__ __forceinline__ uint32_t sixteenth(uint32_t range) {
  return mul_f16x2(range, 0x2c002c00u);
}

__device__ __forceinline__ uint32_t word_of(const uint4& v, int i) {
  return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

// Cosine and sine of this thread's angle k of its pair.
__device__ __forceinline__ float2 unit_of(uint32_t cells, int k) {
  const float2 cell = unpack_f16(cells);
  const float middle =
      (static_cast<float>(threadIdx.x % 4 * 4 + k) + 0.5f) * (cell.y * (1.f / 16.f)) + cell.x;
  return polar_cos_sin(middle);
}

__device__ __forceinline__ float query_of(const uint16_t* queries, uint32_t query,
                                          uint32_t channel) {
  return __uint_as_float(static_cast<uint32_t>(queries[query * kDim + channel]) << 16);
}

// The greatest products of a block, from those of the lanes of row g that hold two queries each:
// `n` and `n + 1`.
struct Most {
  float of[kWarps][kQueries];
};
template <class Product>
__device__ __forceinline__ void finish(const PolarProductParams& p, uint32_t block, Most& shared,
                                       bool holds, uint32_t n, Product product) {
  const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4;
#pragma unroll
  for (int i = 0; i < 2; i++) {
    if (holds && p.products != nullptr) {
      float* const to =
          p.products + (static_cast<uint64_t>(block) * kQueries + n + i) * 128 + 16 * warp + g;
      to[0] = product(i, 0), to[8] = product(i, 1);
    }
    float most = fmaxf(product(i, 0), product(i, 1));
#pragma unroll
    for (int mask = 4; mask <= 16; mask *= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, mask));
    if (holds && g == 0) shared.of[warp][n + i] = most;
  }
  __syncthreads();
  if (threadIdx.x < kQueries) {
    float most = shared.of[0][threadIdx.x];
    for (uint32_t w = 1; w < kWarps; w++) most = fmaxf(most, shared.of[w][threadIdx.x]);
    p.most[static_cast<uint64_t>(block) * kQueries + threadIdx.x] = most;
  }
}

// T[pair][code] of the four queries, fp16.
using Table = uint2[kPairs][kAngles];

// The products of a block by its table. `radius_of(codes, i)`: radii of the two columns of
// i = 2 c + h, fp16x2, whose codes are in the low bits of either half.
template <class RadiusOf>
__device__ __forceinline__ void finish_by_table(const PolarProductParams& p, uint32_t block,
                                                const Table& table, const Codes16& codes,
                                                Most& most, RadiusOf radius_of) {
  const uint32_t t = threadIdx.x % 4;
  float sum[2][kQueries] = {};
#pragma unroll
  for (int c = 0; c < 4; c++) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
#pragma unroll
      for (int r = 0; r < 2; r++) {
        const uint32_t angles = word_of(codes.angles, c) >> (8 * h + 4 * r),
                       radii = word_of(codes.radii, c) >> (8 * h + 4 * r);
        const float2 radius = unpack_f16(radius_of(radii, 2 * c + h));
#pragma unroll
        for (int e = 0; e < 2; e++) {
          const uint2 of = table[16 * c + 8 * h + 2 * t + e][angles >> 16 * e & 15];
          const float2 low = unpack_f16(of.x), high = unpack_f16(of.y);
          const float length = e == 0 ? radius.x : radius.y;
          sum[r][0] += length * low.x, sum[r][1] += length * low.y, sum[r][2] += length * high.x,
              sum[r][3] += length * high.y;
        }
      }
    }
  }
  // Lanes t = 0 and 1 end with two queries each.
#pragma unroll
  for (int i = 0; i < 8; i++) {
    float& x = sum[i / 4][i % 4];
    x += __shfl_xor_sync(~0u, x, 1);
    x += __shfl_xor_sync(~0u, x, 2);
  }
  finish(p, block, most, t < 2, 2 * t,
         [&](int i, int r) { return t % 2 == 0 ? sum[r][i] : sum[r][2 + i]; });
}

// A thread's four entries of the table, of its pair and the directions `unit_of(k)`.
template <class UnitOf>
__device__ __forceinline__ void fill_table(Table& table, const float (&qx)[kQueries],
                                           const float (&qy)[kQueries], UnitOf unit_of) {
  const uint32_t pair = threadIdx.x / 4, t = threadIdx.x % 4;
#pragma unroll
  for (int k = 0; k < 4; k++) {
    const float2 unit = unit_of(k);
    auto of = [&](int n) { return qx[n] * unit.x + qy[n] * unit.y; };
    table[pair][4 * t + k] = make_uint2(pack_f16(of(0), of(1)), pack_f16(of(2), of(3)));
  }
}

__device__ __forceinline__ void load_queries(const PolarProductParams& p, float (&qx)[kQueries],
                                             float (&qy)[kQueries]) {
  const uint32_t pair = threadIdx.x / 4;
#pragma unroll
  for (uint32_t n = 0; n < kQueries; n++)
    qx[n] = query_of(p.queries, n, pair), qy[n] = query_of(p.queries, n, kPairs + pair);
}

// By tables, anew for each block.
__device__ __forceinline__ void by_tables(const PolarProductParams& p) {
  __shared__ Table table;
  __shared__ Most most;
  float qx[kQueries], qy[kQueries];
  load_queries(p, qx, qy);
  uint32_t next_angle_cells = load_angle_cells(p, blockIdx.x);
  for (uint32_t block = blockIdx.x; block < p.blocks; block += gridDim.x) {
    const uint8_t* const record = p.keys + static_cast<uint64_t>(block) * kRecord;
    const Codes16 codes = load_codes16(record);
    const RadiusCells cells = load_radius_cells(record);
    const uint32_t angle_cells = next_angle_cells;
    next_angle_cells = load_angle_cells(p, block + gridDim.x);
    fill_table(table, qx, qy, [&](int k) { return unit_of(angle_cells, k); });
    __syncthreads();
    finish_by_table(p, block, table, codes, most, [&](uint32_t radii, int i) {
      return radius_pair(radii, cells.zero[i], sixteenth(cells.range[i]));
    });
    __syncthreads();
  }
}

// By one table for all blocks. It has a step's share of the greatest radius in it, so that radii
// are codes times that: fp16 holds them up to 65504 / 15.
__device__ __forceinline__ void by_grid_table(const PolarProductParams& p) {
  __shared__ Table table;
  __shared__ Most most;
  float qx[kQueries], qy[kQueries];
  load_queries(p, qx, qy);
  fill_table(table, qx, qy, [&](int k) {
    const uint32_t turned = (threadIdx.x % 4 * 4 + k + kHalfTurn) % kAngles;
    const float2 unit = polar_cos_sin(static_cast<float>(turned) * (kTau / kAngles));
    return make_float2(unit.x * (1.f / 15.f), unit.y * (1.f / 15.f));
  });
  __syncthreads();
  for (uint32_t block = blockIdx.x; block < p.blocks; block += gridDim.x) {
    const uint8_t* const record = p.keys + static_cast<uint64_t>(block) * kGridRecord;
    const Codes16 codes = load_codes16(record, kGridMeta);
    // Four warps have a group's 64 tokens.
    const uint32_t* const greatest =
        reinterpret_cast<const uint32_t*>(record + threadIdx.x / 128 * 2 * kPairs) +
        threadIdx.x % 4;
    uint32_t longest[8];
#pragma unroll
    for (int i = 0; i < 8; i++) longest[i] = __ldg(greatest + 4 * i);
    finish_by_table(p, block, table, codes, most, [&](uint32_t radii, int i) {
      constexpr uint32_t k1024 = 0x64006400u, kOne = 0x3c003c00u, kMinus1024 = 0xe400e400u;
      return mul_f16x2(fma_f16x2((radii & 0x000f000fu) | k1024, kOne, kMinus1024), longest[i]);
    });
    __syncthreads();
  }
}

// Cartesian: unit vectors of [pair][code], fp16, anew for each block; times radii they are the A
// operand of tensor cores.
__device__ __forceinline__ void by_products(const PolarProductParams& p) {
  __shared__ uint32_t units[kPairs][kAngles];
  __shared__ Most most;
  const uint32_t pair = threadIdx.x / 4, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
  // Rows of the table in an order that gives the four pairs of a load both halves of the banks.
  auto row = [](uint32_t pair) { return pair ^ (pair >> 1 & 1); };
  uint32_t qx[4][2], qy[4][2];
#pragma unroll
  for (int c = 0; c < 4; c++) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
      const uint32_t channel = 16 * c + 8 * h + 2 * t;
      auto two = [&](uint32_t first) {
        return g < kQueries
                   ? pack_f16(query_of(p.queries, g, first), query_of(p.queries, g, first + 1))
                   : 0;
      };
      qx[c][h] = two(channel), qy[c][h] = two(kPairs + channel);
    }
  }
  uint32_t next_angle_cells = load_angle_cells(p, blockIdx.x);
  for (uint32_t block = blockIdx.x; block < p.blocks; block += gridDim.x) {
    const uint8_t* const record = p.keys + static_cast<uint64_t>(block) * kRecord;
    const Codes16 codes = load_codes16(record);
    const RadiusCells cells = load_radius_cells(record);
    const uint32_t angle_cells = next_angle_cells;
    next_angle_cells = load_angle_cells(p, block + gridDim.x);
#pragma unroll
    for (int k = 0; k < 4; k++) {
      const float2 unit = unit_of(angle_cells, k);
      units[row(pair)][4 * t + k] = pack_f16(unit.x, unit.y);
    }
    __syncthreads();
    float sum[4] = {};
#pragma unroll
    for (int c = 0; c < 4; c++) {
      uint32_t x[4], y[4];
#pragma unroll
      for (int h = 0; h < 2; h++) {
        const uint32_t step = sixteenth(cells.range[2 * c + h]), column = 16 * c + 8 * h + 2 * t;
#pragma unroll
        for (int r = 0; r < 2; r++) {
          const uint32_t angles = word_of(codes.angles, c) >> (8 * h + 4 * r),
                         radii = word_of(codes.radii, c) >> (8 * h + 4 * r);
          const uint32_t radius = radius_pair(radii, cells.zero[2 * c + h], step);
          const uint32_t first = units[row(column)][angles & 15],
                         second = units[row(column + 1)][angles >> 16 & 15];
          x[2 * h + r] = mul_f16x2(__byte_perm(first, second, 0x5410), radius);
          y[2 * h + r] = mul_f16x2(__byte_perm(first, second, 0x7632), radius);
        }
      }
      mma_f16(sum, x, qx[c][0], qx[c][1]);
      mma_f16(sum, y, qy[c][0], qy[c][1]);
    }
    finish(p, block, most, t < 2, 2 * t, [&](int i, int r) { return sum[2 * r + i]; });
    __syncthreads();
  }
}

// 16-bit rows: a lane's 16 bytes of a row are four steps of k, in an order that the queries have,
// too.
__device__ __forceinline__ void of_rows(const PolarProductParams& p) {
  __shared__ Most most;
  const uint32_t warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
  uint4 q[4];
#pragma unroll
  for (int j = 0; j < 4; j++) {
    q[j] = make_uint4(0, 0, 0, 0);
    if (g < kQueries) q[j] = *reinterpret_cast<const uint4*>(p.queries + g * kDim + 32 * j + 8 * t);
  }
  for (uint32_t block = blockIdx.x; block < p.blocks; block += gridDim.x) {
    const uint4* const rows =
        reinterpret_cast<const uint4*>(
            p.keys + (static_cast<uint64_t>(block) * 128 + 16 * warp + g) * 2 * kDim) +
        t;
    uint4 k[2][4];
#pragma unroll
    for (int j = 0; j < 4; j++)
      k[0][j] = __ldg(rows + 4 * j), k[1][j] = __ldg(rows + 8 * kDim / 8 + 4 * j);
    float sum[4] = {};
#pragma unroll
    for (int j = 0; j < 4; j++) {
      mma_bf16(sum, {k[0][j].x, k[1][j].x, k[0][j].y, k[1][j].y}, q[j].x, q[j].y);
      mma_bf16(sum, {k[0][j].z, k[1][j].z, k[0][j].w, k[1][j].w}, q[j].z, q[j].w);
    }
    finish(p, block, most, t < 2, 2 * t, [&](int i, int r) { return sum[2 * r + i]; });
    __syncthreads();
  }
}

}  // namespace polar_probe
}  // namespace ebb

// Any grid.
EBB_KERNEL(probe_polar_tables, ebb::PolarProductParams, 256, 3) { ebb::polar_probe::by_tables(p); }
EBB_KERNEL(probe_polar_grid_table, ebb::PolarProductParams, 256, 3) {
  ebb::polar_probe::by_grid_table(p);
}
EBB_KERNEL(probe_polar_products, ebb::PolarProductParams, 256, 3) {
  ebb::polar_probe::by_products(p);
}
EBB_KERNEL(probe_polar_rows, ebb::PolarProductParams, 256, 3) { ebb::polar_probe::of_rows(p); }
