// A head in a warp's registers, of any width up to 64 PAIRS channels: bias, norm, RoPE of all, some
// or no channels.
//
// Pair j of a head is channels j and j + half, which rotate, or, from half on, channels 2j and
// 2j + 1, which do not; a lane has every 32nd pair.
#pragma once
#include "heads.cuh"

namespace ebb {

template <int PAIRS>
struct PairedHead {
  float x[PAIRS][2];
  uint32_t at[PAIRS][2];  // channels
  uint32_t d;

  // Head `head` of a row, whose channels begin at `row_at`, with its bias. `half`: of the channels
  // that rotate.
  __device__ __forceinline__ PairedHead(const HeadParams& h, uint64_t row_at, uint32_t head,
                                        uint32_t head_dim, uint32_t half)
      : d(head_dim) {
    const uint32_t lane = threadIdx.x % 32;
    const bf16* const from = h.qkv + row_at + head * d;
#pragma unroll
    for (int i = 0; i < PAIRS; i++) {
      const uint32_t j = i * 32 + lane;
      at[i][0] = j < half ? j : 2 * j;
      at[i][1] = j < half ? j + half : 2 * j + 1;
#pragma unroll
      for (int r = 0; r < 2; r++) {
        x[i][r] = 2 * j < d ? __bfloat162float(from[at[i][r]]) : 0.f;
        if (h.bias && 2 * j < d) x[i][r] += __bfloat162float(h.bias[head * d + at[i][r]]);
      }
    }
  }

  // Calls `act(value, channel)` for each of this lane's.
  template <class Act>
  __device__ __forceinline__ void each(const Act& act) {
    const uint32_t lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < PAIRS; i++) {
#pragma unroll
      for (int r = 0; r < 2; r++)
        if (2 * (i * 32 + lane) < d) act(x[i][r], at[i][r]);
    }
  }

  // The sum of all squares.
  __device__ __forceinline__ float square() const {
    float sum = 0.f;
#pragma unroll
    for (int i = 0; i < PAIRS; i++) sum = fmaf(x[i][0], x[i][0], fmaf(x[i][1], x[i][1], sum));
    return warp_sum(sum);
  }

  // Normalises by the squares of `width` channels; `weight` is null where norms have none.
  __device__ __forceinline__ void normalise(const HeadParams& h, float square, float width,
                                            const bf16* weight) {
    const float inverse = rsqrtf(fmaf(square, 1.f / width, h.eps)), one = h.norm_from_one;
    each([&](float& value, uint32_t channel) {
      value *= weight ? inverse * (one + __bfloat162float(weight[channel])) : inverse;
    });
  }

  __device__ __forceinline__ void rotate(const HeadParams& h, uint32_t row, uint32_t half) {
#pragma unroll
    for (int i = 0; i < PAIRS; i++) {
      const uint32_t j = i * 32 + threadIdx.x % 32;
      if (j < half) {
        const float2 cs = h.table[static_cast<uint64_t>(row) * half + j];
        const float a = x[i][0], b = x[i][1];
        x[i][0] = fmaf(a, cs.x, -(b * cs.y));
        x[i][1] = fmaf(b, cs.x, a * cs.y);
      }
    }
  }
};

}  // namespace ebb
