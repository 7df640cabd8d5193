// Edits the logits of a row in place, brings the maxima of its blocks up to date, and finds the
// largest of all.
#include "row.cuh"

namespace ebb {

constexpr int kSettleWarps = 16;
constexpr float kLargest = 3.40282346638528859812e38f;

// In the engine's order (engine/serving/src/sampling/edits.rs).
__device__ __forceinline__ float edited(float logit, const SampleJob& d, const LogitEdit& e) {
  if (e.flags & kMasked) logit = -INFINITY;
  logit = __fadd_rn(logit, e.bias);
  // What was finite stays finite.
  if (logit > -INFINITY && (e.count > 0 || e.flags & kInPrompt))
    logit = logit > 0.f ? fminf(__fdiv_rn(logit, d.repetition), kLargest)
                        : fmaxf(__fmul_rn(logit, d.repetition), -kLargest);
  if (e.count > 0)
    logit = __fsub_rn(__fsub_rn(logit, __fmul_rn(d.frequency, static_cast<float>(e.count))),
                      d.presence);
  return logit;
}

}  // namespace ebb

// Grid: rows.
EBB_KERNEL(sample_settle, ebb::SampleParams, 512, 2) {
  __shared__ uint32_t touched[ebb::kBlocksMax / 32];
  __shared__ uint64_t scratch[ebb::kSettleWarps];
  __shared__ uint32_t listed;
  const ebb::SampleJob& d = p.samples[p.row_samples[blockIdx.x]];
  float* row = p.logits + static_cast<uint64_t>(d.row) * p.vocab;
  float* maxima = p.maxima + static_cast<uint64_t>(d.row) * p.blocks;
  if (d.edits > 0 || d.also != ebb::kNone) {
    const uint32_t also = d.also == ebb::kNone ? ebb::kNone : p.sampled[d.also];
    for (uint32_t i = threadIdx.x; i < ebb::kBlocksMax / 32; i += 512) touched[i] = 0;
    if (threadIdx.x == 0) listed = 0;
    __syncthreads();
    auto touch = [&](uint32_t id) {
      atomicOr(&touched[id / ebb::kBlock / 32], 1u << (id / ebb::kBlock % 32));
    };
    for (uint32_t i = threadIdx.x; i < d.edits; i += 512) {
      ebb::LogitEdit e = p.edits[d.first_edit + i];
      if (e.id >= p.vocab) continue;
      if (e.id == also) {
        e.count++;
        listed = 1;
      }
      const float before = row[e.id];
      p.saved[d.first_edit + i] = before;
      row[e.id] = ebb::edited(before, d, e);
      touch(e.id);
    }
    __syncthreads();
    if (threadIdx.x == 0) {
      ebb::TokenLogit saved = {ebb::kNone, 0.f};
      if (also < p.vocab && !listed) {
        saved = {also, row[also]};
        row[also] = ebb::edited(saved.logit, d, {also, 0.f, 1, 0});
        touch(also);
      }
      p.saved_also[d.row] = saved;
    }
    __syncthreads();
    for (uint32_t b = threadIdx.x / 32; b < p.blocks; b += ebb::kSettleWarps) {
      if (!(touched[b / 32] >> (b % 32) & 1)) continue;
      // What was not finite before the edits stays an error.
      const bool sound = maxima[b] < INFINITY;
      float v[4];
      ebb::load_block(row, p.vocab, b, v);
      const float max = ebb::block_max(v);
      if (sound && threadIdx.x % 32 == 0) maxima[b] = max;
    }
    __syncthreads();
  }
  uint64_t best = 0;
  for (uint32_t b = threadIdx.x; b < p.blocks; b += 512) {
    const uint64_t here = ebb::ordered(maxima[b]);
    best = here > best ? here : best;
  }
  best = ebb::cta_max<ebb::kSettleWarps>(best, scratch);
  if (threadIdx.x == 0) p.row_max[d.row] = ebb::from_ordered(static_cast<uint32_t>(best));
}
