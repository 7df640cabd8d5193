// Polar keys: RoPE pairs (i, i + D/2) as angle and radius (README.md), operation by
// operation as the CPU's codec.
//
// Record, P = D/2: `[angle zero; P][angle range; P][radius zero; P][radius range; P]` in fp16, the
// first two only if angles are fitted, then the plane of angles `[128][P]`, 4 bits, and that of
// radii, 4 or 2.
#pragma once
#include "cuda/formats/pool.cuh"
#include "cuda/formats/quantise.cuh"

namespace ebb {

constexpr float kPi = 3.14159265358979f, kHalfPi = 1.57079632679489662f,
                kTau = 6.28318530717958648f;
constexpr uint32_t kAngleBits = 4, kAngles = 1 << kAngleBits;

template <int HeadDim>
__device__ __forceinline__ uint32_t polar_meta_bytes(const Layout& layout) {
  return layout.angle_grid ? 2 * HeadDim : 4 * HeadDim;
}

// angle.rs: in 0 ..= 2 pi; of values that are finite.
__device__ __forceinline__ float polar_angle(float x, float y) {
  constexpr float kAtan[9] = {0.0028662257f, -0.016165737f, 0.042909614f, -0.07528964f, 0.10656264f,
                              -0.142089f,    0.19993551f,   -0.33333145f, 1.f};
  const float ax = fabsf(x), ay = fabsf(y);
  const bool steep = ay > ax;
  const float lesser = steep ? ax : ay, greater = steep ? ay : ax;
  const float a = greater > 0.f ? __fdiv_rn(lesser, greater) : 0.f;
  const float a2 = __fmul_rn(a, a);
  float sum = kAtan[0];
#pragma unroll
  for (int i = 1; i < 9; i++) sum = __fadd_rn(__fmul_rn(sum, a2), kAtan[i]);
  const float octant = __fmul_rn(a, sum);
  const float quadrant = steep ? __fsub_rn(kHalfPi, octant) : octant;
  const float half = x < 0.f ? __fsub_rn(kPi, quadrant) : quadrant;
  return y < 0.f ? __fsub_rn(kTau, half) : half;
}
__device__ __forceinline__ float polar_radius(float x, float y) {
  return __fsqrt_rn(__fadd_rn(__fmul_rn(x, x), __fmul_rn(y, y)));
}

// Cosine and sine of an angle in 0 ..= 8.
__device__ __forceinline__ float2 polar_cos_sin(float angle) {
  constexpr float kTwoOverPi = 0.636619772367581343f, kHigh = 1.5703125f, kLow = 4.838268e-4f;
  const float quadrant = floorf(__fadd_rn(__fmul_rn(angle, kTwoOverPi), 0.5f));
  const float x =
      __fsub_rn(__fsub_rn(angle, __fmul_rn(quadrant, kHigh)), __fmul_rn(quadrant, kLow));
  const float x2 = __fmul_rn(x, x);
  const float odd = __fadd_rn(
      -0.16666655f, __fmul_rn(x2, __fadd_rn(8.332161e-3f, __fmul_rn(x2, -1.9515296e-4f))));
  const float sine = __fadd_rn(x, __fmul_rn(__fmul_rn(x, x2), odd));
  const float even = __fadd_rn(
      4.1666646e-2f, __fmul_rn(x2, __fadd_rn(-1.3887316e-3f, __fmul_rn(x2, 2.4433157e-5f))));
  const float cosine =
      __fadd_rn(__fsub_rn(1.f, __fmul_rn(0.5f, x2)), __fmul_rn(__fmul_rn(x2, x2), even));
  const uint32_t turn = static_cast<uint32_t>(quadrant) % 4;
  if (turn == 0) return make_float2(cosine, sine);
  if (turn == 1) return make_float2(-sine, cosine);
  if (turn == 2) return make_float2(-cosine, -sine);
  return make_float2(sine, -cosine);
}

// The middle of a cell.
__device__ __forceinline__ float cell_middle(uint32_t code, float step, float zero) {
  return __fadd_rn(__fmul_rn(__fadd_rn(static_cast<float>(code), 0.5f), step), zero);
}

// A thread holds the codes of 4 fragments of a plane of P columns, as codes.cuh has those of 8.
template <int HeadDim>
struct PairFragments {
  static constexpr int kPairs = HeadDim / 2, kTiles = kPairs / 16;
  static_assert(4 % kTiles == 0);
  __device__ __forceinline__ static uint32_t column(int i, int h) {
    return 16 * (i % kTiles) + 8 * h + 2 * (threadIdx.x % 4);
  }
  __device__ __forceinline__ static uint32_t row(int i) {
    return 16 * (threadIdx.x / 32 * (4 / kTiles) + i / kTiles) + threadIdx.x % 32 / 4;
  }
};
using PairCodes = uint32_t[4][2];

template <class At>
__device__ __forceinline__ void store_pair_codes(const PairCodes& q, uint32_t bits, At at) {
  if (bits == 4) {
    uint32_t words[4];
#pragma unroll
    for (int i = 0; i < 4; i++) words[i] = join<4>(q[i][0]) | join<4>(q[i][1]) << 8;
    *reinterpret_cast<uint4*>(at(16 * threadIdx.x)) = as_vector(words);
  } else {
    uint32_t words[2] = {};
#pragma unroll
    for (int i = 0; i < 4; i++)
      for (int h = 0; h < 2; h++) words[i / 2] |= join<2>(q[i][h]) << (8 * h + 4 * (i % 2));
    *reinterpret_cast<uint2*>(at(half_vector_offset())) = make_uint2(words[0], words[1]);
  }
}
template <class At>
__device__ __forceinline__ void load_pair_codes(PairCodes& q, uint32_t bits, At at) {
  if (bits == 4) {
    const uint4 v = *reinterpret_cast<const uint4*>(at(16 * threadIdx.x));
    const uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int i = 0; i < 4; i++)
      for (int h = 0; h < 2; h++) q[i][h] = spread<4>(words[i] >> 8 * h & 0x00ff00ffu);
  } else {
    const uint2 v = *reinterpret_cast<const uint2*>(at(half_vector_offset()));
    const uint32_t words[2] = {v.x, v.y};
#pragma unroll
    for (int i = 0; i < 4; i++)
      for (int h = 0; h < 2; h++)
        q[i][h] = spread<2>(words[i / 2] >> (8 * h + 4 * (i % 2)) & 0x000f000fu);
  }
}

// Channels x and y of a pair of the staged rows; what is beyond fp16 is noted in `s`.
template <int HeadDim>
__device__ __forceinline__ float2 checked_pair(const uint8_t* staged, uint32_t token, uint32_t pair,
                                               PageShared& s) {
  constexpr uint32_t kPairs = HeadDim / 2;
  const uint32_t x = staged_bits<HeadDim>(staged, token, pair),
                 y = staged_bits<HeadDim>(staged, token, pair + kPairs);
  if ((x & 0x7fffu) >= kBeyondFp16) atomicMin(&s.bad_element, token * HeadDim + pair);
  if ((y & 0x7fffu) >= kBeyondFp16) atomicMin(&s.bad_element, token * HeadDim + pair + kPairs);
  return make_float2(widen_bf16(x), widen_bf16(y));
}

// Whether nothing was noted there; otherwise thread 0 has the failure.
template <int HeadDim>
__device__ __forceinline__ bool are_sound(const uint8_t* staged, const PageShared& s,
                                          uint64_t& failure) {
  const uint32_t element = s.bad_element;
  if (element == kSound) return true;
  failure =
      value_failure(element, staged_bits<HeadDim>(staged, element / HeadDim, element % HeadDim));
  return false;
}

// Whether no thread has found a radius beyond fp16; otherwise thread 0 has the failure. `pair` and
// `greatest` are a thread's own.
__device__ __forceinline__ bool radii_fit(uint32_t pair, float greatest, PageShared& s,
                                          uint64_t& failure) {
  const uint32_t bad = s.bad_group;
  if (bad == kSound) return true;
  // Through shared memory to thread 0.
  if (threadIdx.x == bad)
    s.loudness[0] = static_cast<int64_t>(failure_of(kBadRadius, pair, __float_as_uint(greatest)));
  __syncthreads();
  failure = static_cast<uint64_t>(s.loudness[0]);
  return false;
}

__device__ __forceinline__ void load_meta(const RecordBytes& src, uint32_t bytes, PageShared& s) {
  const uint32_t tid = threadIdx.x;
  if (tid < bytes / 16)
    reinterpret_cast<uint4*>(s.meta)[tid] = *reinterpret_cast<const uint4*>(src.at(16 * tid));
}

// Writes `s.meta` and the planes of the staged rows: `angle` and `radius` make the code of a point,
// a token and a pair.
template <int HeadDim, class Angle, class Radius>
__device__ __forceinline__ void write_pairs(const RecordBytes& dst, uint32_t meta_bytes,
                                            uint32_t bits, const uint8_t* staged,
                                            const PageShared& s, Angle angle, Radius radius) {
  using F = PairFragments<HeadDim>;
  const uint32_t tid = threadIdx.x;
  if (tid < meta_bytes / 16)
    *reinterpret_cast<uint4*>(dst.at(16 * tid)) = reinterpret_cast<const uint4*>(s.meta)[tid];
  PairCodes angles = {}, radii = {};
#pragma unroll
  for (int i = 0; i < 4; i++) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
#pragma unroll
      for (int r = 0; r < 2; r++) {
        const uint32_t token = F::row(i) + 8 * r, pair = F::column(i, h);
        const uint8_t* const row = staged + pair % 8 * 2;
        const float2 x = unpack_bf16(
            *reinterpret_cast<const uint32_t*>(row + staged_offset<HeadDim>(token, pair / 8)));
        const float2 y = unpack_bf16(*reinterpret_cast<const uint32_t*>(
            row + staged_offset<HeadDim>(token, (pair + F::kPairs) / 8)));
        const float2 first = make_float2(x.x, y.x), second = make_float2(x.y, y.y);
        angles[i][h] |= (angle(first, token, pair) | angle(second, token, pair + 1) << 16) << 8 * r;
        radii[i][h] |= (radius(first, token, pair) | radius(second, token, pair + 1) << 16)
                       << 8 * r;
      }
    }
  }
  store_pair_codes(angles, kAngleBits, [&](uint32_t o) { return dst.at(meta_bytes + o); });
  store_pair_codes(radii, bits, [&](uint32_t o) { return dst.at(meta_bytes + 32 * HeadDim + o); });
}

// Stages the values of a record's planes, bf16: `point` makes x and y of a token, a pair and its
// codes.
template <int HeadDim, class Point>
__device__ __forceinline__ void stage_pairs(const RecordBytes& src, uint32_t meta_bytes,
                                            uint32_t bits, uint8_t* staged, Point point) {
  using F = PairFragments<HeadDim>;
  PairCodes angles, radii;
  load_pair_codes(angles, kAngleBits, [&](uint32_t o) { return src.at(meta_bytes + o); });
  load_pair_codes(radii, bits, [&](uint32_t o) { return src.at(meta_bytes + 32 * HeadDim + o); });
#pragma unroll
  for (int i = 0; i < 4; i++) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
#pragma unroll
      for (int r = 0; r < 2; r++) {
        const uint32_t token = F::row(i) + 8 * r, pair = F::column(i, h);
        float2 at[2];
#pragma unroll
        for (int e = 0; e < 2; e++) {
          const uint32_t shift = 16 * e + 8 * r;
          at[e] = point(token, pair + e, angles[i][h] >> shift & 0xff, radii[i][h] >> shift & 0xff);
        }
        uint8_t* const row = staged + pair % 8 * 2;
        *reinterpret_cast<uint32_t*>(row + staged_offset<HeadDim>(token, pair / 8)) =
            pack_bf16(at[0].x, at[1].x);
        *reinterpret_cast<uint32_t*>(row + staged_offset<HeadDim>(token, (pair + F::kPairs) / 8)) =
            pack_bf16(at[0].y, at[1].y);
      }
    }
  }
  __syncthreads();
}

// Fits cells to the staged rows: metadata into `s.meta`; zeros of angles, then of radii, into
// `s.zero`, cells per unit into `s.scale`. False if there are none; then thread 0 has the failure.
// `partials` are kPartialBytes of shared memory.
template <int HeadDim>
__device__ __forceinline__ bool find_cells(const uint8_t* staged, float* partials, PageShared& s,
                                           const Layout& layout, uint64_t& failure) {
  constexpr uint32_t kPairs = HeadDim / 2, kParts = 4, kTokens = 128 / kParts;
  static_assert(4 * kParts * kPairs * sizeof(float) <= kPartialBytes);
  const uint32_t tid = threadIdx.x, pair = tid % kPairs, part = tid / kPairs;
  if (tid == 0) s.bad_group = s.bad_element = kSound;
  __syncthreads();
  // Least and greatest angle, least and greatest radius.
  float bounds[4] = {INFINITY, -INFINITY, INFINITY, -INFINITY};
  auto widen = [&](int quantity, float low, float high) {
    bounds[2 * quantity] = low < bounds[2 * quantity] ? low : bounds[2 * quantity];
    bounds[2 * quantity + 1] = high > bounds[2 * quantity + 1] ? high : bounds[2 * quantity + 1];
  };
#pragma unroll 2
  for (uint32_t token = part * kTokens; token < (part + 1) * kTokens; token++) {
    const float2 at = checked_pair<HeadDim>(staged, token, pair, s);
    const float angle = polar_angle(at.x, at.y), radius = polar_radius(at.x, at.y);
    widen(0, angle, angle);
    widen(1, radius, radius);
  }
#pragma unroll
  for (int k = 0; k < 4; k++) partials[(k * kParts + part) * kPairs + pair] = bounds[k];
  __syncthreads();
  if (!are_sound<HeadDim>(staged, s, failure)) return false;
  if (tid < kPairs) {
    for (uint32_t other = 1; other < kParts; other++) {
#pragma unroll
      for (int quantity = 0; quantity < 2; quantity++)
        widen(quantity, partials[(2 * quantity * kParts + other) * kPairs + pair],
              partials[((2 * quantity + 1) * kParts + other) * kPairs + pair]);
    }
    // No angle is beyond fp16, and no radius less than zero.
    if (bounds[3] > kFp16Max) {
      atomicMin(&s.bad_group, pair);
    } else {
      auto fit = [&](int quantity, uint32_t bits, uint16_t* meta) {
        const uint32_t zero_bits = fp16_round_down(bounds[2 * quantity]);
        const float zero = fp16_value(zero_bits);
        const uint32_t range_bits = fp16_round_up(__fsub_rn(bounds[2 * quantity + 1], zero));
        meta[pair] = static_cast<uint16_t>(zero_bits);
        meta[kPairs + pair] = static_cast<uint16_t>(range_bits);
        s.zero[quantity * kPairs + pair] = zero;
        s.scale[quantity * kPairs + pair] =
            steps_per_unit(__fdiv_rn(fp16_value(range_bits), static_cast<float>(1 << bits)), 1.f);
      };
      if (layout.angle_grid) {
        s.zero[pair] = 0.f;
        s.scale[pair] = __fdiv_rn(1.f, __fdiv_rn(kTau, kAngles));
      } else {
        fit(0, kAngleBits, s.meta);
      }
      fit(1, layout.radius_bits, s.meta + (layout.angle_grid ? 0 : 2 * kPairs));
    }
  }
  __syncthreads();
  return radii_fit(pair, bounds[3], s, failure);
}

// Writes the staged rows with the cells of find_cells.
template <int HeadDim>
__device__ __forceinline__ void write_polar(const RecordBytes& dst, const Layout& layout,
                                            const uint8_t* staged, const PageShared& s) {
  const uint32_t bits = layout.radius_bits;
  auto code_in_cells = [&](float v, uint32_t at, uint32_t last) {
    const uint32_t code = static_cast<uint32_t>(
        static_cast<int32_t>(__fmul_rn(__fsub_rn(v, s.zero[at]), s.scale[at])));
    return code < last ? code : last;
  };
  auto angle_code = [&](float2 at, uint32_t, uint32_t pair) {
    return code_in_cells(polar_angle(at.x, at.y), pair, kAngles - 1);
  };
  auto radius_code = [&](float2 at, uint32_t, uint32_t pair) {
    return code_in_cells(polar_radius(at.x, at.y), HeadDim / 2 + pair, (1u << bits) - 1);
  };
  write_pairs<HeadDim>(dst, polar_meta_bytes<HeadDim>(layout), bits, staged, s, angle_code,
                       radius_code);
}

// Values of a record to staged rows, bf16. `vectors` are kPartialBytes of shared memory: cosine and
// sine of every angle of every pair.
template <int HeadDim>
__device__ __forceinline__ void read_polar(const RecordBytes& src, const Layout& layout,
                                           uint8_t* staged, float2* vectors, PageShared& s) {
  constexpr uint32_t kPairs = HeadDim / 2;
  static_assert(kPairs * kAngles * sizeof(float2) <= kPartialBytes);
  const uint32_t tid = threadIdx.x, meta_bytes = polar_meta_bytes<HeadDim>(layout),
                 bits = layout.radius_bits;
  load_meta(src, meta_bytes, s);
  __syncthreads();
  const bool grid = layout.angle_grid;
  const uint16_t* const radius_meta = s.meta + (grid ? 0 : 2 * kPairs);
  if (tid < kPairs) {
    s.zero[tid] = fp16_value(radius_meta[tid]);
    s.scale[tid] = __fdiv_rn(fp16_value(radius_meta[kPairs + tid]), static_cast<float>(1 << bits));
  }
  for (uint32_t i = tid; i < kPairs * kAngles; i += 2 * HeadDim) {
    const uint32_t pair = i / kAngles;
    const float zero = grid ? 0.f : fp16_value(s.meta[pair]);
    const float step =
        __fdiv_rn(grid ? kTau : fp16_value(s.meta[kPairs + pair]), static_cast<float>(kAngles));
    vectors[i] = polar_cos_sin(cell_middle(i % kAngles, step, zero));
  }
  __syncthreads();
  stage_pairs<HeadDim>(src, meta_bytes, bits, staged,
                       [&](uint32_t, uint32_t pair, uint32_t angle, uint32_t radius) {
                         const float2 unit = vectors[pair * kAngles + angle];
                         const float length = cell_middle(radius, s.scale[pair], s.zero[pair]);
                         return make_float2(__fmul_rn(length, unit.x), __fmul_rn(length, unit.y));
                       });
}

// What decode attention takes for one side of a block.
constexpr uint32_t kPolarCost = 30;

struct PolarCodec {
  static constexpr bool kKeysOnly = true;

  template <int HeadDim, bool Keys>
  __device__ __forceinline__ static bool write(const RecordBytes& dst, const Layout& layout,
                                               uint8_t* scratch, PageShared& s, uint64_t& failure) {
    float* const partials = reinterpret_cast<float*>(scratch + 256 * HeadDim);
    if (!find_cells<HeadDim>(scratch, partials, s, layout, failure)) return false;
    write_polar<HeadDim>(dst, layout, scratch, s);
    return true;
  }
  template <int HeadDim, bool Keys>
  __device__ __forceinline__ static void read(const RecordBytes& src, const Layout& layout,
                                              uint8_t* scratch, PageShared& s) {
    float2* const vectors = reinterpret_cast<float2*>(scratch + 256 * HeadDim);
    read_polar<HeadDim>(src, layout, scratch, vectors, s);
  }
};
template <int RadiusBits, bool AngleGrid>
struct PolarFormat : AnyFormat {
  static constexpr Layout kLayout = {0, 0.f, 0, 0, RadiusBits, AngleGrid};
  static constexpr uint32_t kCost = kPolarCost;
  using Encoder = PolarCodec;
  using Dequantiser = PolarCodec;
};

}  // namespace ebb
