// What a report of log-probabilities needs of a row, before anything edits it.
#include "row.cuh"

namespace ebb {

constexpr int kReportWarps = 16;

}  // namespace ebb

// Grid: samples.
EBB_KERNEL(sample_report, ebb::SampleParams, 512, 2) {
  __shared__ float left[ebb::kBlocksMax];
  __shared__ uint64_t scratch[ebb::kReportWarps];
  __shared__ double partial[ebb::kReportWarps];
  __shared__ uint64_t taken;
  const ebb::SampleJob& d = p.samples[blockIdx.x];
  if (d.report == 0) return;
  const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const float* row = p.logits + static_cast<uint64_t>(d.row) * p.vocab;
  uint64_t best = 0;
  for (uint32_t b = threadIdx.x; b < p.blocks; b += 512) {
    left[b] = p.maxima[static_cast<uint64_t>(d.row) * p.blocks + b];
    const uint64_t here = ebb::ordered(left[b]);
    best = here > best ? here : best;
  }
  const float max =
      ebb::from_ordered(static_cast<uint32_t>(ebb::cta_max<ebb::kReportWarps>(best, scratch)));
  double sum = 0;
  for (uint32_t b = warp; b < p.blocks; b += ebb::kReportWarps) {
    float v[4];
    ebb::load_block(row, p.vocab, b, v);
    float here = 0.f;
#pragma unroll
    for (int i = 0; i < 4; i++) here += ebb::exp2_fixed((v[i] - max) * ebb::kLog2E, 0);
    sum += here;
  }
#pragma unroll
  for (int k = 16; k > 0; k >>= 1) sum += __shfl_xor_sync(~0u, sum, k);
  if (lane == 0) partial[warp] = sum;
  __syncthreads();
  sum = 0;
  for (int w = 0; w < ebb::kReportWarps; w++) sum += partial[w];

  // The best of what is left, one after the other: what was taken ranks above everything left.
  uint32_t count = 0;
  uint64_t last = ~0ull;
  while (count < d.report - 1) {
    best = 0;
    for (uint32_t b = threadIdx.x; b < p.blocks; b += 512) {
      const uint64_t here = ebb::rank(b, left[b]);
      best = here > best ? here : best;
    }
    best = ebb::cta_max<ebb::kReportWarps>(best, scratch);
    const uint32_t block = ~static_cast<uint32_t>(best);
    if (ebb::from_ordered(static_cast<uint32_t>(best >> 32)) == -INFINITY) break;
    if (warp == 0) {
      uint64_t first = 0, second = 0;
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const uint32_t id = block * ebb::kBlock + 32 * i + lane;
        const uint64_t key = id < p.vocab ? ebb::rank(id, row[id]) : 0;
        if (key >= last) continue;
        if (key > first) {
          second = first;
          first = key;
        } else if (key > second) {
          second = key;
        }
      }
#pragma unroll
      for (int k = 16; k > 0; k >>= 1) {
        const uint64_t a = __shfl_xor_sync(~0u, first, k), b = __shfl_xor_sync(~0u, second, k);
        second = first < a ? (first > b ? first : b) : (a > second ? a : second);
        first = a > first ? a : first;
      }
      if (lane == 0) {
        taken = first;
        left[block] = second ? ebb::from_ordered(static_cast<uint32_t>(second >> 32)) : -INFINITY;
        p.top[blockIdx.x * ebb::kTopMax + count] = {
            ~static_cast<uint32_t>(first), ebb::from_ordered(static_cast<uint32_t>(first >> 32))};
      }
    }
    __syncthreads();
    last = taken;
    count++;
    __syncthreads();
  }
  if (threadIdx.x == 0) {
    p.results[blockIdx.x].max = max;
    p.results[blockIdx.x].sum = sum;
    p.results[blockIdx.x].top = count;
  }
}
