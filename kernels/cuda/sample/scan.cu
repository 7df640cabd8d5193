// What every sample needs: the maxima of all blocks of its row; and for samples from whole rows the
// sums of their weights.
#include "row.cuh"

namespace ebb {

constexpr uint32_t kBlocksPerWarp = 4;

}  // namespace ebb

// Grid: blocks / 32, rows.
EBB_KERNEL(sample_scan, ebb::SampleParams, 256, 4) {
  const uint32_t first = (blockIdx.x * 8 + threadIdx.x / 32) * ebb::kBlocksPerWarp;
  const float* row = p.logits + static_cast<uint64_t>(blockIdx.y) * p.vocab;
  float* maxima = p.maxima + static_cast<uint64_t>(blockIdx.y) * p.blocks;
  float v[ebb::kBlocksPerWarp][4];
#pragma unroll
  for (uint32_t u = 0; u < ebb::kBlocksPerWarp; u++) ebb::load_block(row, p.vocab, first + u, v[u]);
#pragma unroll
  for (uint32_t u = 0; u < ebb::kBlocksPerWarp; u++) {
    const float max = ebb::block_max(v[u]);
    if (threadIdx.x % 32 == 0 && first + u < p.blocks) maxima[first + u] = max;
  }
}

// Grid: blocks / 32, samples.
EBB_KERNEL(sample_sum, ebb::SampleParams, 256, 4) {
  const ebb::SampleJob& d = p.samples[blockIdx.y];
  if (!d.whole || d.inverse_temperature == 0.f) return;
  const ebb::Row row = ebb::row_of(p, d);
  const uint32_t first = (blockIdx.x * 8 + threadIdx.x / 32) * ebb::kBlocksPerWarp;
  bool on[ebb::kBlocksPerWarp];
  float v[ebb::kBlocksPerWarp][4];
#pragma unroll
  for (uint32_t u = 0; u < ebb::kBlocksPerWarp; u++) {
    on[u] = first + u < p.blocks && row.scaled(row.maxima[first + u]) >= ebb::kZeroBelow;
    if (on[u]) ebb::load_block(row.logits, p.vocab, first + u, v[u]);
  }
#pragma unroll
  for (uint32_t u = 0; u < ebb::kBlocksPerWarp; u++) {
    uint64_t sum = 0;
    if (on[u]) {
      ebb::WeightSum weights;
#pragma unroll
      for (int i = 0; i < 4; i++) weights.add(ebb::weight(row.scaled(v[u][i])));
      sum = weights.over_warp();
    }
    if (threadIdx.x % 32 == 0 && first + u < p.blocks)
      p.sums[static_cast<uint64_t>(blockIdx.y) * p.blocks + first + u] = sum;
  }
}
