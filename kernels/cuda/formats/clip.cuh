// Clipped 2-bit codes: zero and range of a column chosen within those of its 4-bit codes (formats/clip/README.md), to the bit as
// formats/clip/mod.rs does.
#pragma once
#include "quantise.cuh"

namespace ebb {

// Windows of four levels, in halves of a 4-bit step: 30 are what a column spans. Wider ones first, then lower ones.
struct ClipWindows {
  static constexpr int kSpan = 30, kWidest = 10, kNarrowest = 8;
  static constexpr uint32_t kOfKeys = 12, kOfValues = 5;  // values stop at steps of 9
  uint32_t errors[kOfKeys][4];  // squared distances of the sixteen codes, a byte each
  uint32_t codes[kOfKeys];      // their levels, two bits each
  float low[kOfKeys], width[kOfKeys];
};

constexpr ClipWindows clip_windows() {
  ClipWindows t = {};
  uint32_t w = 0;
  for (int step = ClipWindows::kWidest; step >= ClipWindows::kNarrowest; step--) {
    for (int low = 0; low + 3 * step <= ClipWindows::kSpan; low++, w++) {
      for (int code = 0; code < 16; code++) {
        const int above = 2 * code - low;
        int level = above < 0 ? 0 : (2 * above + step) / (2 * step);
        if (level > 3) level = 3;
        const int distance = above - level * step;
        t.errors[w][code / 4] |= static_cast<uint32_t>(distance * distance) << 8 * (code % 4);
        t.codes[w] |= static_cast<uint32_t>(level) << 2 * code;
      }
      t.low[w] = static_cast<float>(low), t.width[w] = static_cast<float>(3 * step);
    }
  }
  return t;
}
static __constant__ ClipWindows kClipWindows = clip_windows();

// Chooses windows for the columns that `chosen` names and moves their zeros and ranges in `s.meta`; the levels of their codes are in
// `s.sums` then. `counts` is shared memory, [4][columns]: sixteen counts a column, a byte each.
template <int HeadDim, bool Keys, class Chosen>
__device__ __forceinline__ void choose_windows(const Codes& q, uint32_t* counts, PageShared& s, Chosen chosen) {
  using F = Fragments<HeadDim, Keys>;
  const uint32_t tid = threadIdx.x;
  __syncthreads();  // What lies there may still be read.
  for (uint32_t i = tid; i < 4 * F::kColumns; i += F::kThreads) counts[i] = 0;
  __syncthreads();
#pragma unroll
  for (int i = 0; i < 8; i++) {
#pragma unroll
    for (int k = 0; k < 8; k++) {
      const uint32_t code = q[i][k / 4] >> 8 * (k % 4) & 15, column = F::column(i, k / 4) + k % 4 / 2;
      atomicAdd(&counts[code / 4 * F::kColumns + column], 1u << 8 * (code % 4));
    }
  }
  __syncthreads();
  if (tid < F::kColumns && chosen(tid)) {
    uint32_t least = ~0u, best = 0, of_code[4];
#pragma unroll
    for (int k = 0; k < 4; k++) of_code[k] = counts[k * F::kColumns + tid];
    for (uint32_t w = 0; w < (Keys ? ClipWindows::kOfKeys : ClipWindows::kOfValues); w++) {
      uint32_t sum = 0;
#pragma unroll
      for (int k = 0; k < 4; k++) sum = __dp4a(of_code[k], kClipWindows.errors[w][k], sum);
      if (sum < least) least = sum, best = w;
    }
    const float half_step = __fdiv_rn(fp16_value(s.meta[F::kColumns + tid]), static_cast<float>(ClipWindows::kSpan));
    const float low = __fadd_rn(fp16_value(s.meta[tid]), __fmul_rn(kClipWindows.low[best], half_step));
    s.meta[tid] = static_cast<uint16_t>(fp16_round_nearest(low));
    s.meta[F::kColumns + tid] = static_cast<uint16_t>(fp16_round_nearest(__fmul_rn(kClipWindows.width[best], half_step)));
    s.sums[tid] = kClipWindows.codes[best];
  }
  __syncthreads();
}

// Four codes of two columns, by each column's levels.
__device__ __forceinline__ uint32_t clip_4_to_2(uint32_t q, uint32_t first, uint32_t second) {
  auto level = [&](uint32_t levels, int k) { return (levels >> 2 * (q >> 8 * k & 15) & 3) << 8 * k; };
  return level(first, 0) | level(first, 1) | level(second, 2) | level(second, 3);
}

}  // namespace ebb
