// A head of Q, K or V behind its projection: bias, norm, RoPE, factors, Hadamard rotation. Products
// and sums are written out as the instructions that they shall be, so that whichever kernel does it
// comes to the same bits.
#pragma once
#include <type_traits>

#include "../common/ptx.cuh"
#include "../common/reduce.cuh"
#include "hadamard.cuh"

namespace ebb {

struct HeadParams {
  const bf16* qkv;     // [rows][(q_heads + 2 * kv_heads) * head_dim]
  const bf16* bias;    // [(q_heads + 2 * kv_heads) * head_dim], or null
  const bf16* q_norm;  // [head_dim], or null; then k_norm too
  const bf16* k_norm;
  const float2* table;  // [rows][head_dim / 2]: cosine, sine
  // [q_heads + kv_heads][head_dim / 2]: what channels i and i + head_dim / 2 are multiplied by
  // behind RoPE, or null
  const float* factors;
  float eps;
  uint8_t rotate_k;        // whether Q and K are multiplied by a Hadamard matrix after RoPE
  uint8_t rotate_v;        // whether V is; then attention's output is, too (rotate_back.cu)
  uint16_t norm_from_one;  // whether weights of norms count from 1
};
static_assert(sizeof(HeadParams) == 56);

// One warp has a head: lane l has channels P * l .. and the same plus D / 2, P = D / 64 each;
// channel i rotates with i + D / 2.
template <int D>
struct Head {
  static constexpr int P = D / 64;
  static_assert(P == 1 || P == 2);

  // By which a row's heads rotate: cosines and sines.
  struct Angles {
    float2 of[P];
    __device__ __forceinline__ void load(const HeadParams& p, uint32_t row, uint32_t lane) {
#pragma unroll
      for (int i = 0; i < P; i++)
        of[i] = p.table[static_cast<uint64_t>(row) * (D / 2) + lane * P + i];
    }
  };

  uint32_t raw[2];  // bf16

  // Head `head` of a row's `heads`, Q's before K's before V's, as its projection left it.
  __device__ __forceinline__ void load(const HeadParams& p, uint32_t row, uint32_t head,
                                       uint32_t heads, uint32_t lane) {
    using Word = std::conditional_t<P == 2, uint32_t, uint16_t>;
    const Word* from =
        reinterpret_cast<const Word*>(p.qkv + (static_cast<uint64_t>(row) * heads + head) * D) +
        lane;
    raw[0] = from[0];
    raw[1] = from[32];
  }

  // What attention needs of it, to `to`, its channel 0. `norm`: Q's or K's, or null; `angles`: null
  // for V, which does not rotate.
  __device__ __forceinline__ void finish(const HeadParams& p, uint32_t head, const bf16* norm,
                                         const Angles* angles, uint32_t lane, bf16* to) const {
    float x[2][P];
#pragma unroll
    for (int h = 0; h < 2; h++) {
#pragma unroll
      for (int i = 0; i < P; i++) {
        x[h][i] = i == 0 ? unpack_bf16(raw[h]).x : unpack_bf16(raw[h]).y;
        if (p.bias) x[h][i] += __bfloat162float(p.bias[head * D + h * (D / 2) + lane * P + i]);
      }
    }
    if (norm) {
      float square = 0.f;
#pragma unroll
      for (int i = 0; i < P; i++) square = fmaf(x[0][i], x[0][i], fmaf(x[1][i], x[1][i], square));
      const float inverse = rsqrtf(fmaf(warp_sum(square), 1.f / D, p.eps)), from = p.norm_from_one;
#pragma unroll
      for (int h = 0; h < 2; h++) {
#pragma unroll
        for (int i = 0; i < P; i++)
          x[h][i] *= inverse * (from + __bfloat162float(norm[h * (D / 2) + lane * P + i]));
      }
    }
    if (angles) {
#pragma unroll
      for (int i = 0; i < P; i++) {
        const float2 cs = angles->of[i];
        const float a = x[0][i], b = x[1][i];
        x[0][i] = fmaf(a, cs.x, -(b * cs.y));
        x[1][i] = fmaf(b, cs.x, a * cs.y);
      }
      if (p.factors) {
#pragma unroll
        for (int i = 0; i < P; i++) {
          const float factor = p.factors[head * (D / 2) + lane * P + i];
          x[0][i] *= factor;
          x[1][i] *= factor;
        }
      }
    }
    if (angles ? p.rotate_k : p.rotate_v) hadamard(x, lane);
#pragma unroll
    for (int h = 0; h < 2; h++) {
      if constexpr (P == 2)
        *reinterpret_cast<uint32_t*>(to + h * (D / 2) + lane * P) = pack_bf16(x[h][0], x[h][1]);
      else
        to[h * (D / 2) + lane] = __float2bfloat16(x[h][0]);
    }
  }
};

}  // namespace ebb
