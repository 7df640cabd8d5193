// Records with a dense plane of codes, back to rows.
#pragma once
#include "page.cuh"

namespace ebb {

// Zeros and steps of the groups of the page whose metadata, and ranks, are in `s`.
template <int HeadDim, bool Keys, bool ByRow>
__device__ __forceinline__ void find_steps(const Layout& layout, SharedOf<HeadDim>& s) {
  constexpr uint32_t kGroups = ByRow ? 128 : Fragments<HeadDim, Keys>::kColumns;
  const uint32_t c = threadIdx.x;
  if (c < kGroups) {
    float levels = layout.levels;
    if (Keys && layout.slabs > 0 && s.old_rank[c] < layout.slabs * (HeadDim / 8)) levels = 15.f;
    s.zero[c] = fp16_value(s.meta[c]);
    s.scale[c] = __fdiv_rn(fp16_value(s.meta[kGroups + c]), levels);
  }
  __syncthreads();
}

// Values of codes to staged rows, bf16.
template <int HeadDim, bool Keys, bool ByRow>
__device__ __forceinline__ void dequantise(const Codes& q, const SharedOf<HeadDim>& s,
                                           uint8_t* staged) {
  using F = Fragments<HeadDim, Keys>;
  const uint32_t g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
  for (int i = 0; i < 8; i++) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
#pragma unroll
      for (int r = 0; r < 2; r++) {
        const float2 zero = of_groups<HeadDim, Keys, ByRow>(s.zero, i, h, r),
                     step = of_groups<HeadDim, Keys, ByRow>(s.scale, i, h, r);
        const float x =
            __fadd_rn(__fmul_rn(static_cast<float>(q[i][h] >> 8 * r & 0xff), step.x), zero.x);
        const float y = __fadd_rn(
            __fmul_rn(static_cast<float>(q[i][h] >> (16 + 8 * r) & 0xff), step.y), zero.y);
        uint32_t pair = pack_bf16(x, y), token, chunk;
        if (Keys) {
          token = 16 * F::row_tile(i) + 8 * r + g, chunk = 2 * F::column_tile(i) + h;
        } else {
          // The pair is two tokens of a channel; it should be two channels of a token.
          pair = movmatrix_trans(pair);
          token = 16 * F::column_tile(i) + 8 * h + g, chunk = 2 * F::row_tile(i) + r;
        }
        *reinterpret_cast<uint32_t*>(staged + staged_offset<HeadDim>(token, chunk) + 4 * t) = pair;
      }
    }
  }
}

template <bool ByToken>
struct PlaneDequantiser {
  static constexpr bool kKeysOnly = ByToken;

  template <int HeadDim, bool Keys>
  __device__ __forceinline__ static void read(const RecordBytes& src, const Layout& layout,
                                              uint8_t* staged, SharedOf<HeadDim>& s) {
    Codes q;
    read_page<HeadDim, Keys, ByToken>(src, layout, staged, s, q);
    find_steps<HeadDim, Keys, ByToken>(layout, s);
    dequantise<HeadDim, Keys, ByToken>(q, s, staged);
    __syncthreads();
  }
};

}  // namespace ebb
