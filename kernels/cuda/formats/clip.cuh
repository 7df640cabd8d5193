// Clipped 2-bit codes: zero and range of a column chosen within those of its 4-bit codes
// (formats/clip/README.md), to the bit as formats/clip/mod.rs does.
#pragma once
#include "quantise.cuh"

namespace ebb {

// Windows of four levels, in halves of a 4-bit step: 30 are what a column spans. Wider ones first,
// then lower ones.
struct ClipWindows {
  static constexpr int kSpan = 30, kWidest = 10, kNarrowest = 8;
  static constexpr uint32_t kOfKeys = 12, kOfValues = 5;  // values stop at steps of 9
  uint32_t errors[kOfKeys][4];  // squared distances of the sixteen codes, a byte each
  uint32_t levels[kOfKeys];     // the first codes of levels 1, 2 and 3, a byte each; 16: none
  float low[kOfKeys], width[kOfKeys];
};

constexpr ClipWindows clip_windows() {
  ClipWindows t = {};
  uint32_t w = 0;
  for (int step = ClipWindows::kWidest; step >= ClipWindows::kNarrowest; step--) {
    for (int low = 0; low + 3 * step <= ClipWindows::kSpan; low++, w++) {
      int first[3] = {16, 16, 16};
      for (int code = 0; code < 16; code++) {
        const int above = 2 * code - low;
        int level = above < 0 ? 0 : (2 * above + step) / (2 * step);
        if (level > 3) level = 3;
        const int distance = above - level * step;
        t.errors[w][code / 4] |= static_cast<uint32_t>(distance * distance) << 8 * (code % 4);
        for (int k = 0; k < level; k++) first[k] = code < first[k] ? code : first[k];
      }
      t.levels[w] = static_cast<uint32_t>(first[0] | first[1] << 8 | first[2] << 16);
      t.low[w] = static_cast<float>(low), t.width[w] = static_cast<float>(3 * step);
    }
  }
  return t;
}
static __constant__ ClipWindows kClipWindows = clip_windows();

// Adds how often each of the sixteen codes occurs among the 32 nibbles of four words to `counts`, a
// byte a code. By planes of bits, the four words transposed: a code is where its bits' planes meet.
__device__ __forceinline__ void count_codes(uint4 v, uint32_t (&counts)[4]) {
  uint32_t plane[4] = {v.x, v.y, v.z, v.w};
  auto exchange = [](uint32_t& a, uint32_t& b, int distance, uint32_t mask) {
    const uint32_t x = (a >> distance ^ b) & mask;
    b ^= x;
    a ^= x << distance;
  };
  exchange(plane[0], plane[1], 1, 0x55555555u);
  exchange(plane[2], plane[3], 1, 0x55555555u);
  exchange(plane[0], plane[2], 2, 0x33333333u);
  exchange(plane[1], plane[3], 2, 0x33333333u);
#pragma unroll
  for (int high = 0; high < 4; high++) {
    const uint32_t of_high = (high & 2 ? plane[3] : ~plane[3]) & (high & 1 ? plane[2] : ~plane[2]);
#pragma unroll
    for (int low = 0; low < 4; low++) {
      const uint32_t of_code =
          of_high & (low & 2 ? plane[1] : ~plane[1]) & (low & 1 ? plane[0] : ~plane[0]);
      counts[high] += static_cast<uint32_t>(__popc(of_code)) << 8 * low;
    }
  }
}

// Chooses windows for the columns that `chosen` names and moves their zeros and ranges in `s.meta`;
// where their levels begin is in `s.sums` then. `scratch` is shared memory for half a byte a code,
// and 16 bytes a column: codes pass there to the threads of their column, 64 each.
template <int HeadDim, bool Keys, class Chosen>
__device__ __forceinline__ void choose_windows(const Codes& q, uint8_t* scratch,
                                               SharedOf<HeadDim>& s, Chosen chosen) {
  using F = Fragments<HeadDim, Keys>;
  constexpr uint32_t kRows = Keys ? 128 : HeadDim, kStride = kRows / 2 + 16,
                     kShare = F::kThreads / F::kColumns;
  static_assert(kRows == 64 * kShare && F::kColumns * kStride <= 256 * HeadDim);
  const uint32_t tid = threadIdx.x, column = tid / kShare;
  __syncthreads();  // What lies there may still be read.
#pragma unroll
  for (int i = 0; i < 8; i++) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
      // r = 0 and 1 beside each other, of e = 0 and 1
      const uint32_t rows = q[i][h] | q[i][h] >> 4;
      uint8_t* const at = scratch + F::column(i, h) * kStride + F::row_tile(i) * 8 + tid % 32 / 4;
      at[0] = static_cast<uint8_t>(rows);
      at[kStride] = static_cast<uint8_t>(rows >> 16);
    }
  }
  __syncthreads();
  uint32_t counts[4] = {};
  const uint4* const codes =
      reinterpret_cast<const uint4*>(scratch + column * kStride + tid % kShare * 32);
  count_codes(codes[0], counts);
  count_codes(codes[1], counts);
#pragma unroll
  for (uint32_t mask = 1; mask < kShare; mask *= 2) {
#pragma unroll
    for (int k = 0; k < 4; k++) counts[k] += __shfl_xor_sync(~0u, counts[k], mask);
  }
  if (tid % kShare == 0 && chosen(column)) {
    uint32_t least = ~0u, best = 0;
    for (uint32_t w = 0; w < (Keys ? ClipWindows::kOfKeys : ClipWindows::kOfValues); w++) {
      uint32_t sum = 0;
#pragma unroll
      for (int k = 0; k < 4; k++) sum = __dp4a(counts[k], kClipWindows.errors[w][k], sum);
      if (sum < least) least = sum, best = w;
    }
    const float half_step =
        __fdiv_rn(fp16_value(s.meta[F::kColumns + column]), static_cast<float>(ClipWindows::kSpan));
    const float low =
        __fadd_rn(fp16_value(s.meta[column]), __fmul_rn(kClipWindows.low[best], half_step));
    s.meta[column] = static_cast<uint16_t>(fp16_round_nearest(low));
    s.meta[F::kColumns + column] =
        static_cast<uint16_t>(fp16_round_nearest(__fmul_rn(kClipWindows.width[best], half_step)));
    s.sums[column] = kClipWindows.levels[best];
  } else if (tid % kShare == 0) {
    s.sums[column] = 0;
  }
  __syncthreads();
}

// Levels of four codes of two columns, given where each column's levels begin: how many of three do
// at the code or below. Bit 5 stays where a begin is not above a code.
__device__ __forceinline__ uint32_t clip_4_to_2(uint32_t q, uint32_t first, uint32_t second) {
  constexpr uint32_t kBit = 0x20202020u;
  auto reached = [&](uint32_t selector) {
    return ((q | kBit) - __byte_perm(first, second, selector)) & kBit;
  };
  return (reached(0x4400) + reached(0x5511) + reached(0x6622)) >> 5;
}

}  // namespace ebb
