// Polar keys by PolarQuant's own rule (README.md), operation by operation as the CPU's codec.
//
// Record, P = D/2, G tokens a group: `[greatest radius; 128 / G][P]` in fp16, then the planes of
// device.cuh.
#pragma once
#include "device.cuh"

namespace ebb {

// What the paper's angles lie ahead of atan2's, in steps of the grid: pi.
constexpr uint32_t kHalfTurn = kAngles / 2;

// Scales of a record: a group's pairs beside each other. `group`: its tokens, 64 or 128.
template <int HeadDim>
__device__ __forceinline__ uint32_t polar_scales(uint32_t group) {
  return 128 / group * (HeadDim / 2);
}

// Greatest radii of the staged rows: fp16 into `s.meta`, codes per unit into `s.scale`. False if
// one is beyond fp16; then thread 0 has the failure. `partials` are kPartialBytes of shared memory.
template <int HeadDim>
__device__ __forceinline__ bool find_scales(const uint8_t* staged, float* partials, PageShared& s,
                                            const Layout& layout, uint64_t& failure) {
  constexpr uint32_t kPairs = HeadDim / 2, kParts = 4, kTokens = 128 / kParts;
  static_assert(kParts * kPairs * sizeof(float) <= kPartialBytes);
  const uint32_t tid = threadIdx.x, pair = tid % kPairs, part = tid / kPairs;
  if (tid == 0) s.bad_group = s.bad_element = kSound;
  __syncthreads();
  float greatest = 0.f;
#pragma unroll 2
  for (uint32_t token = part * kTokens; token < (part + 1) * kTokens; token++) {
    const float2 at = checked_pair<HeadDim>(staged, token, pair, s);
    const float radius = polar_radius(at.x, at.y);
    greatest = radius > greatest ? radius : greatest;
  }
  partials[part * kPairs + pair] = greatest;
  __syncthreads();
  if (!are_sound<HeadDim>(staged, s, failure)) return false;
  const uint32_t of_group = layout.variant / kTokens;
  if (tid < polar_scales<HeadDim>(layout.variant)) {
    // `part` is the group here.
    greatest = 0.f;
    for (uint32_t other = part * of_group; other < (part + 1) * of_group; other++) {
      const float radius = partials[other * kPairs + pair];
      greatest = radius > greatest ? radius : greatest;
    }
    if (greatest > kFp16Max) {
      atomicMin(&s.bad_group, tid);
    } else {
      const uint32_t bits = fp16_round_up(greatest);
      s.meta[tid] = static_cast<uint16_t>(bits);
      s.scale[tid] =
          steps_per_unit(fp16_value(bits), static_cast<float>((1u << layout.radius_bits) - 1));
    }
  }
  __syncthreads();
  return radii_fit(pair, greatest, s, failure);
}

struct PublishedPolarCodec {
  static constexpr bool kKeysOnly = true;

  // Which scale a pair of a token has.
  template <int HeadDim>
  __device__ __forceinline__ static uint32_t scale_of(const Layout& layout, uint32_t token,
                                                      uint32_t pair) {
    return token / layout.variant * (HeadDim / 2) + pair;
  }

  __device__ __forceinline__ static uint32_t to_nearest(float x) {
    return static_cast<uint32_t>(static_cast<int32_t>(__fadd_rn(x, 0.5f)));
  }

  template <int HeadDim, bool Keys>
  __device__ __forceinline__ static bool write(const RecordBytes& dst, const Layout& layout,
                                               uint8_t* scratch, PageShared& s, uint64_t& failure) {
    float* const partials = reinterpret_cast<float*>(scratch + 256 * HeadDim);
    if (!find_scales<HeadDim>(scratch, partials, s, layout, failure)) return false;
    const uint32_t meta_bytes = 2 * polar_scales<HeadDim>(layout.variant),
                   bits = layout.radius_bits, last = (1u << bits) - 1;
    auto angle_code = [](float2 at, uint32_t, uint32_t) {
      constexpr float kPerUnit = kAngles / kTau;
      return (to_nearest(__fmul_rn(polar_angle(at.x, at.y), kPerUnit)) + kHalfTurn) % kAngles;
    };
    auto radius_code = [&](float2 at, uint32_t token, uint32_t pair) {
      const float scale = s.scale[scale_of<HeadDim>(layout, token, pair)];
      const uint32_t code = to_nearest(__fmul_rn(polar_radius(at.x, at.y), scale));
      return code < last ? code : last;
    };
    write_pairs<HeadDim>(dst, meta_bytes, bits, scratch, s, angle_code, radius_code);
    return true;
  }

  template <int HeadDim, bool Keys>
  __device__ __forceinline__ static void read(const RecordBytes& src, const Layout& layout,
                                              uint8_t* scratch, PageShared& s) {
    float2* const units = reinterpret_cast<float2*>(scratch + 256 * HeadDim);
    const uint32_t tid = threadIdx.x, scales = polar_scales<HeadDim>(layout.variant),
                   bits = layout.radius_bits;
    load_meta(src, 2 * scales, s);
    if (tid < kAngles) {
      const uint32_t turned = (tid + kHalfTurn) % kAngles;
      units[tid] = polar_cos_sin(__fmul_rn(static_cast<float>(turned), kTau / kAngles));
    }
    __syncthreads();
    if (tid < scales)
      s.scale[tid] = __fdiv_rn(fp16_value(s.meta[tid]), static_cast<float>((1u << bits) - 1));
    __syncthreads();
    stage_pairs<HeadDim>(src, 2 * scales, bits, scratch,
                         [&](uint32_t token, uint32_t pair, uint32_t angle, uint32_t code) {
                           const float2 unit = units[angle];
                           const float scale = s.scale[scale_of<HeadDim>(layout, token, pair)],
                                       radius = __fmul_rn(static_cast<float>(code), scale);
                           return make_float2(__fmul_rn(radius, unit.x), __fmul_rn(radius, unit.y));
                         });
  }
};
template <int RadiusBits, uint32_t Group>
struct PublishedPolarFormat : AnyFormat {
  static constexpr Layout kLayout = {0, 0.f, 0, 0, RadiusBits, false, Group};
  using Encoder = PublishedPolarCodec;
  using Dequantiser = PublishedPolarCodec;
};

}  // namespace ebb
