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
    const uint32_t x = staged_bits<HeadDim>(staged, token, pair),
                   y = staged_bits<HeadDim>(staged, token, pair + kPairs);
    if ((x & 0x7fffu) >= kBeyondFp16) atomicMin(&s.bad_element, token * HeadDim + pair);
    if ((y & 0x7fffu) >= kBeyondFp16) atomicMin(&s.bad_element, token * HeadDim + pair + kPairs);
    const float radius = polar_radius(widen_bf16(x), widen_bf16(y));
    greatest = radius > greatest ? radius : greatest;
  }
  partials[part * kPairs + pair] = greatest;
  __syncthreads();
  const uint32_t element = s.bad_element;
  if (element != kSound) {
    failure =
        value_failure(element, staged_bits<HeadDim>(staged, element / HeadDim, element % HeadDim));
    return false;
  }
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
  const uint32_t bad = s.bad_group;
  if (bad == kSound) return true;
  // Through shared memory to thread 0.
  if (tid == bad)
    s.loudness[0] = static_cast<int64_t>(failure_of(kBadRadius, pair, __float_as_uint(greatest)));
  __syncthreads();
  failure = static_cast<uint64_t>(s.loudness[0]);
  return false;
}

struct PublishedPolarCodec {
  static constexpr bool kKeysOnly = true;

  __device__ __forceinline__ static uint32_t to_nearest(float x) {
    return static_cast<uint32_t>(static_cast<int32_t>(__fadd_rn(x, 0.5f)));
  }

  template <int HeadDim, bool Keys>
  __device__ __forceinline__ static bool write(const RecordBytes& dst, const Layout& layout,
                                               uint8_t* scratch, PageShared& s, uint64_t& failure) {
    using F = PairFragments<HeadDim>;
    float* const partials = reinterpret_cast<float*>(scratch + 256 * HeadDim);
    if (!find_scales<HeadDim>(scratch, partials, s, layout, failure)) return false;
    const uint32_t meta_bytes = 2 * polar_scales<HeadDim>(layout.variant),
                   bits = layout.radius_bits, last = (1u << bits) - 1;
    if (threadIdx.x < meta_bytes / 16)
      *reinterpret_cast<uint4*>(dst.at(16 * threadIdx.x)) =
          reinterpret_cast<const uint4*>(s.meta)[threadIdx.x];
    auto angle_code = [](float2 at) {
      constexpr float kPerUnit = kAngles / kTau;
      return (to_nearest(__fmul_rn(polar_angle(at.x, at.y), kPerUnit)) + kHalfTurn) % kAngles;
    };
    auto radius_code = [&](float2 at, uint32_t scale) {
      const uint32_t code = to_nearest(__fmul_rn(polar_radius(at.x, at.y), s.scale[scale]));
      return code < last ? code : last;
    };
    PairCodes angles = {}, radii = {};
#pragma unroll
    for (int i = 0; i < 4; i++) {
#pragma unroll
      for (int h = 0; h < 2; h++) {
#pragma unroll
        for (int r = 0; r < 2; r++) {
          const uint32_t token = F::row(i) + 8 * r, pair = F::column(i, h),
                         scale = token / layout.variant * F::kPairs + pair;
          const uint8_t* const row = scratch + pair % 8 * 2;
          const float2 x = unpack_bf16(
              *reinterpret_cast<const uint32_t*>(row + staged_offset<HeadDim>(token, pair / 8)));
          const float2 y = unpack_bf16(*reinterpret_cast<const uint32_t*>(
              row + staged_offset<HeadDim>(token, (pair + F::kPairs) / 8)));
          const float2 first = make_float2(x.x, y.x), second = make_float2(x.y, y.y);
          angles[i][h] |= (angle_code(first) | angle_code(second) << 16) << 8 * r;
          radii[i][h] |= (radius_code(first, scale) | radius_code(second, scale + 1) << 16)
                         << 8 * r;
        }
      }
    }
    store_pair_codes(angles, kAngleBits, [&](uint32_t o) { return dst.at(meta_bytes + o); });
    const uint32_t radii_at = meta_bytes + 32 * HeadDim;
    store_pair_codes(radii, bits, [&](uint32_t o) { return dst.at(radii_at + o); });
    return true;
  }

  template <int HeadDim, bool Keys>
  __device__ __forceinline__ static void read(const RecordBytes& src, const Layout& layout,
                                              uint8_t* scratch, PageShared& s) {
    using F = PairFragments<HeadDim>;
    float2* const units = reinterpret_cast<float2*>(scratch + 256 * HeadDim);
    const uint32_t tid = threadIdx.x, scales = polar_scales<HeadDim>(layout.variant),
                   meta_bytes = 2 * scales, bits = layout.radius_bits;
    if (tid < meta_bytes / 16)
      reinterpret_cast<uint4*>(s.meta)[tid] = *reinterpret_cast<const uint4*>(src.at(16 * tid));
    if (tid < kAngles) {
      const uint32_t turned = (tid + kHalfTurn) % kAngles;
      units[tid] = polar_cos_sin(__fmul_rn(static_cast<float>(turned), kTau / kAngles));
    }
    __syncthreads();
    if (tid < scales)
      s.scale[tid] = __fdiv_rn(fp16_value(s.meta[tid]), static_cast<float>((1u << bits) - 1));
    __syncthreads();
    PairCodes angles, radii;
    load_pair_codes(angles, kAngleBits, [&](uint32_t o) { return src.at(meta_bytes + o); });
    const uint32_t radii_at = meta_bytes + 32 * HeadDim;
    load_pair_codes(radii, bits, [&](uint32_t o) { return src.at(radii_at + o); });
#pragma unroll
    for (int i = 0; i < 4; i++) {
#pragma unroll
      for (int h = 0; h < 2; h++) {
#pragma unroll
        for (int r = 0; r < 2; r++) {
          const uint32_t token = F::row(i) + 8 * r, pair = F::column(i, h),
                         scale = token / layout.variant * F::kPairs + pair;
          float x[2], y[2];
#pragma unroll
          for (int e = 0; e < 2; e++) {
            const uint32_t shift = 16 * e + 8 * r;
            const float2 unit = units[angles[i][h] >> shift & 0xff];
            const float code = static_cast<float>(radii[i][h] >> shift & 0xff),
                        radius = __fmul_rn(code, s.scale[scale + e]);
            x[e] = __fmul_rn(radius, unit.x), y[e] = __fmul_rn(radius, unit.y);
          }
          uint8_t* const row = scratch + pair % 8 * 2;
          *reinterpret_cast<uint32_t*>(row + staged_offset<HeadDim>(token, pair / 8)) =
              pack_bf16(x[0], x[1]);
          *reinterpret_cast<uint32_t*>(
              row + staged_offset<HeadDim>(token, (pair + F::kPairs) / 8)) = pack_bf16(y[0], y[1]);
        }
      }
    }
    __syncthreads();
  }
};
template <int RadiusBits, uint32_t Group>
struct PublishedPolarFormat : AnyFormat {
  static constexpr Layout kLayout = {0, 0.f, 0, 0, RadiusBits, false, Group};
  using Encoder = PublishedPolarCodec;
  using Dequantiser = PublishedPolarCodec;
};

}  // namespace ebb
