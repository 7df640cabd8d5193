// 16-bit rows to zeros, ranges and codes (formats/affine/range.rs, quantise.rs). A group is a
// column of the plane (a channel of keys, a token of values), or of keys a token.
#pragma once
#include "affine.cuh"

namespace ebb {

// What the threads of a record share besides the staged rows.
template <int Groups>
struct PageSharedOf {
  alignas(16) uint16_t meta[2 * Groups];  // zeros, then ranges, fp16
  float zero[Groups];                     // by group
  float scale[Groups];  // by group: steps per unit when quantising, a step when decoding
  // 2 * group + what is wrong with it, of the first group that has no codes; or kSound
  uint32_t bad_group;
  uint32_t bad_element;
  // Kitty's ranking (formats/kitty/rank.rs).
  alignas(16) uint8_t rank[Groups];  // among the boosted channels, or their number
  uint8_t old_rank[Groups];
  uint8_t first_positive[Groups];
  uint32_t sums[Groups];
  uint32_t louder[Groups];
  int64_t loudness[Groups];
  uint64_t loudness_low[Groups];  // below it, where 64 bits are too few
};
// A group is a channel, or one of 128 tokens.
constexpr int groups_max(int head_dim) { return head_dim > 128 ? head_dim : 128; }
template <int HeadDim>
using SharedOf = PageSharedOf<groups_max(HeadDim)>;
// Of heads of up to 128 channels.
using PageShared = PageSharedOf<128>;
constexpr uint32_t kSound = ~0u;
// bf16 magnitudes from here on are beyond fp16, or not finite.
constexpr uint32_t kBeyondFp16 = 0x4780;

// Why a record cannot be encoded, in kRecordShift bits: a kind above 41 bits of details
// (src/cuda/codecs/tables.rs reads them).
enum FailureKind : uint32_t {
  kBadValue,      // element << 16 | its bf16
  kChannelRange,  // group << 32 | least, bf16 | greatest, bf16
  kTokenRange,    // the same
  kGroupRange,    // the same, of a group of 32
  kBadRadius      // pair << 32 | its greatest radius, f32
};
constexpr uint32_t kRecordShift = 44;
__device__ __forceinline__ uint64_t failure_of(FailureKind kind, uint32_t index, uint32_t details) {
  return static_cast<uint64_t>(kind) << 41 | static_cast<uint64_t>(index) << 32 | details;
}
__device__ __forceinline__ uint64_t value_failure(uint32_t element, uint32_t value) {
  return static_cast<uint64_t>(element) << 16 | value;
}
__device__ __forceinline__ uint64_t range_failure(FailureKind kind, uint32_t group, float least,
                                                  float greatest) {
  return failure_of(kind, group,
                    (__float_as_uint(least) & 0xffff0000u) | __float_as_uint(greatest) >> 16);
}

// An element of the staged rows: its bits, its value.
template <int HeadDim>
__device__ __forceinline__ uint32_t staged_bits(const uint8_t* staged, uint32_t token,
                                                uint32_t channel) {
  return *reinterpret_cast<const uint16_t*>(staged + staged_offset<HeadDim>(token, channel / 8) +
                                            channel % 8 * 2);
}
__device__ __forceinline__ float widen_bf16(uint32_t bits) { return __uint_as_float(bits << 16); }

constexpr uint32_t kPartsMax = 16;  // partial minima of a group
constexpr uint32_t partial_bytes(int head_dim) { return 2 * kPartsMax * groups_max(head_dim) * 2; }
// Of heads of up to 128 channels.
constexpr uint32_t kPartialBytes = partial_bytes(128);

// Zeros and ranges of the staged rows, of channels or of tokens, into `s`, with steps for `levels`.
// False if there are none; then thread 0 has the failure. `partials` are partial_bytes of shared
// memory.
template <int HeadDim, bool ByChannel>
__device__ __forceinline__ bool find_ranges(const uint8_t* staged, uint16_t* partials,
                                            SharedOf<HeadDim>& s, float levels, uint64_t& failure) {
  constexpr uint32_t kGroups = ByChannel ? HeadDim : 128, kParts = ByChannel ? 16 : HeadDim / 32;
  uint16_t* const lows = partials;
  uint16_t* const highs = partials + kParts * kGroups;
  const uint32_t tid = threadIdx.x;
  if (tid == 0) s.bad_group = s.bad_element = kSound;
  // A thread takes eight chunks: of eight neighbouring tokens for channels, of one token for
  // tokens.
  const uint32_t chunk = ByChannel ? tid % (HeadDim / 8) : tid / 128 * 8,
                 token = ByChannel ? tid / (HeadDim / 8) * 8 : tid % 128;
  uint32_t low[4], high[4];
#pragma unroll
  for (int k = 0; k < 8; k++) {
    const uint4 v = *reinterpret_cast<const uint4*>(
        staged +
        staged_offset<HeadDim>(ByChannel ? token + k : token, ByChannel ? chunk : chunk + k));
    const uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int j = 0; j < 4; j++) {
      low[j] = k == 0 ? words[j] : min_bf16x2(low[j], words[j]);
      high[j] = k == 0 ? words[j] : max_bf16x2(high[j], words[j]);
    }
  }
  if constexpr (ByChannel) {
    const uint32_t at = token / 8 * HeadDim + chunk * 8;
    *reinterpret_cast<uint4*>(lows + at) = as_vector(low);
    *reinterpret_cast<uint4*>(highs + at) = as_vector(high);
  } else {
    const uint32_t least = min_bf16x2(min_bf16x2(low[0], low[1]), min_bf16x2(low[2], low[3]));
    const uint32_t most = max_bf16x2(max_bf16x2(high[0], high[1]), max_bf16x2(high[2], high[3]));
    const uint32_t at = tid / 128 * 256 + token;
    lows[at] = static_cast<uint16_t>(least), lows[at + 128] = static_cast<uint16_t>(least >> 16);
    highs[at] = static_cast<uint16_t>(most), highs[at + 128] = static_cast<uint16_t>(most >> 16);
  }
  __syncthreads();
  float least = INFINITY, greatest = -INFINITY;
  if (tid < kGroups) {
    bool within = true;
    for (uint32_t part = 0; part < kParts; part++) {
      const float low = __uint_as_float(static_cast<uint32_t>(lows[part * kGroups + tid]) << 16);
      const float high = __uint_as_float(static_cast<uint32_t>(highs[part * kGroups + tid]) << 16);
      // False for NaN, which the packed minimum hands on.
      within =
          within && low >= -kFp16Max && low <= kFp16Max && high >= -kFp16Max && high <= kFp16Max;
      least = low < least ? low : least;
      greatest = high > greatest ? high : greatest;
    }
    if (!within) {
      atomicMin(&s.bad_group, 2 * tid);
    } else {
      const uint32_t zero_bits = fp16_round_down(least);
      const float zero = fp16_value(zero_bits), exact = __fsub_rn(greatest, zero);
      if (exact > kFp16Max) {
        atomicMin(&s.bad_group, 2 * tid + 1);
      } else {
        const uint32_t range_bits = fp16_round_up(exact);
        s.meta[tid] = static_cast<uint16_t>(zero_bits);
        s.meta[kGroups + tid] = static_cast<uint16_t>(range_bits);
        s.zero[tid] = zero;
        s.scale[tid] = steps_per_unit(fp16_value(range_bits), levels);
      }
    }
  }
  __syncthreads();
  const uint32_t bad = s.bad_group;
  if (bad == kSound) return true;
  if (bad % 2 == 1) {
    // Through shared memory to thread 0.
    if (tid == bad / 2)
      s.loudness[0] = static_cast<int64_t>(
          range_failure(ByChannel ? kChannelRange : kTokenRange, tid, least, greatest));
    __syncthreads();
    failure = static_cast<uint64_t>(s.loudness[0]);
    return false;
  }
  auto bits_of = [&](uint32_t i) { return staged_bits<HeadDim>(staged, i / HeadDim, i % HeadDim); };
  for (uint32_t i = tid; i < 128 * HeadDim; i += 2 * HeadDim) {
    if ((bits_of(i) & 0x7fffu) >= kBeyondFp16) {
      atomicMin(&s.bad_element, i);
      break;
    }
  }
  __syncthreads();
  failure = value_failure(s.bad_element, bits_of(s.bad_element));
  return false;
}

// Zeros, or steps, of a fragment's half h: of the columns e = 0 and 1 of row r, which is the same
// for both rows unless groups are rows of the plane.
template <int HeadDim, bool Keys, bool ByRow>
__device__ __forceinline__ float2 of_groups(const float* groups, int i, int h, int r) {
  using F = Fragments<HeadDim, Keys>;
  if (!ByRow) return *reinterpret_cast<const float2*>(&groups[F::column(i, h)]);
  const float row = groups[F::row(i) + 8 * r];
  return make_float2(row, row);
}

// Codes of the staged rows, with the zeros and steps of find_ranges. `ByRow`: of keys per token.
// `High`: the higher bytes of codes of 16 bits.
template <int HeadDim, bool Keys, bool ByRow = false, bool High = false>
__device__ __forceinline__ void quantise(const uint8_t* staged, const SharedOf<HeadDim>& s,
                                         float levels, Codes& q) {
  using F = Fragments<HeadDim, Keys>;
  const uint32_t lane = threadIdx.x % 32, base = smem_address(staged);
#pragma unroll
  for (int i = 0; i < 8; i++) {
    // Matrix j of the load is (r, h) = (j % 2, j / 2): keys as they lie, values transposed.
    const uint32_t r = lane / 8 % 2, h = lane / 16;
    uint32_t token, chunk;
    if (Keys) {
      token = 16 * F::row_tile(i) + 8 * r + lane % 8, chunk = 2 * F::column_tile(i) + h;
    } else {
      token = 16 * F::column_tile(i) + 8 * h + lane % 8, chunk = 2 * F::row_tile(i) + r;
    }
    uint32_t pairs[4];
    if (Keys) {
      ldmatrix_x4(pairs, base + staged_offset<HeadDim>(token, chunk));
    } else {
      ldmatrix_x4_trans(pairs, base + staged_offset<HeadDim>(token, chunk));
    }
#pragma unroll
    for (int half = 0; half < 2; half++) {
      uint32_t codes[2];
#pragma unroll
      for (int r = 0; r < 2; r++) {
        const float2 zero = of_groups<HeadDim, Keys, ByRow>(s.zero, i, half, r),
                     scale = of_groups<HeadDim, Keys, ByRow>(s.scale, i, half, r);
        const float2 x = unpack_bf16(pairs[2 * half + r]);
        codes[r] = __byte_perm(code_bits(x.x, zero.x, scale.x, levels),
                               code_bits(x.y, zero.y, scale.y, levels), 0x5410);
      }
      // Low (or high) bytes of both halves: of (e = 0, r = 0), (e = 0, r = 1), (e = 1, r = 0), (e =
      // 1, r = 1).
      q[i][half] = __byte_perm(codes[0], codes[1], High ? 0x7351 : 0x6240);
    }
  }
}

}  // namespace ebb
