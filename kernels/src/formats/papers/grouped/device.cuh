// Groups of 32 neighbours (mod.rs): tokens of a channel for keys, channels of a
// token for values.
//
// Record, G = 4 D groups of w words: `[zero; G][range; G]` in fp16, `[first word; G] .. [word w;
// G]`. A word holds 16 codes of 2 bits, 8 of 4, or eleven of 3, the eleventh of which has 2 bits.
#pragma once
#include "cuda/formats/pool.cuh"
#include "cuda/formats/quantise.cuh"

namespace ebb {

template <int Bits>
struct GroupWords {
  static constexpr int kSlots = (32 + Bits - 1) / Bits, kWords = (32 + kSlots - 1) / kSlots;
  __device__ __forceinline__ static constexpr int word(int i) { return i / kSlots; }
  __device__ __forceinline__ static constexpr int shift(int i) { return Bits * (i % kSlots); }
  __device__ __forceinline__ static constexpr uint32_t levels(int i) {
    return (1u << (32 - shift(i) < Bits ? 32 - shift(i) : Bits)) - 1;
  }
};

template <int HeadDim, bool Keys>
struct Groups {
  static constexpr uint32_t kCount = 4 * HeadDim;  // two a thread
  __device__ __forceinline__ static uint32_t token(uint32_t group, int i) {
    return Keys ? group / HeadDim * 32 + i : group / (HeadDim / 32);
  }
  __device__ __forceinline__ static uint32_t channel(uint32_t group, int i) {
    return Keys ? group % HeadDim : group % (HeadDim / 32) * 32 + i;
  }
  // Least and greatest value of the staged rows; elements beyond fp16 are noted in `s`.
  __device__ __forceinline__ static float2 bounds(const uint8_t* staged, uint32_t group,
                                                  PageShared& s) {
    float2 b = make_float2(INFINITY, -INFINITY);
#pragma unroll 4
    for (int i = 0; i < 32; i++) {
      const uint32_t bits = staged_bits<HeadDim>(staged, token(group, i), channel(group, i));
      if ((bits & 0x7fffu) >= kBeyondFp16)
        atomicMin(&s.bad_element, token(group, i) * HeadDim + channel(group, i));
      const float x = widen_bf16(bits);
      b.x = x < b.x ? x : b.x, b.y = x > b.y ? x : b.y;
    }
    return b;
  }
};

// Writes the staged rows. False if they have no codes; then thread 0 has the failure, and what was
// written means nothing.
template <int HeadDim, bool Keys, int Bits>
__device__ __forceinline__ bool write_groups(const RecordBytes& dst, const uint8_t* staged,
                                             PageShared& s, uint64_t& failure) {
  using G = Groups<HeadDim, Keys>;
  using W = GroupWords<Bits>;
  const uint32_t tid = threadIdx.x;
  if (tid == 0) s.bad_group = s.bad_element = kSound;
  __syncthreads();
  for (uint32_t group = tid; group < G::kCount; group += 2 * HeadDim) {
    const float2 bounds = G::bounds(staged, group, s);
    const uint32_t zero_bits = fp16_round_down(bounds.x);
    const float zero = fp16_value(zero_bits), exact = __fsub_rn(bounds.y, zero);
    if (exact > kFp16Max) {
      atomicMin(&s.bad_group, group);
      continue;
    }
    const uint32_t range_bits = fp16_round_up(exact);
    const float range = fp16_value(range_bits);
    *reinterpret_cast<uint16_t*>(dst.at(2 * group)) = static_cast<uint16_t>(zero_bits);
    *reinterpret_cast<uint16_t*>(dst.at(2 * (G::kCount + group))) =
        static_cast<uint16_t>(range_bits);
    uint32_t words[W::kWords] = {};
#pragma unroll
    for (int i = 0; i < 32; i++) {
      const float x =
          widen_bf16(staged_bits<HeadDim>(staged, G::token(group, i), G::channel(group, i)));
      const float levels = static_cast<float>(W::levels(i));
      words[W::word(i)] |= code_of(x, zero, steps_per_unit(range, levels), levels) << W::shift(i);
    }
#pragma unroll
    for (int w = 0; w < W::kWords; w++)
      *reinterpret_cast<uint32_t*>(dst.at(4 * G::kCount + 4 * (w * G::kCount + group))) = words[w];
  }
  __syncthreads();
  const uint32_t element = s.bad_element, bad = s.bad_group;
  if (element != kSound) {
    failure =
        value_failure(element, staged_bits<HeadDim>(staged, element / HeadDim, element % HeadDim));
    return false;
  }
  if (bad == kSound) return true;
  const float2 bounds = G::bounds(staged, bad, s);
  failure = range_failure(kGroupRange, bad, bounds.x, bounds.y);
  return false;
}

// Values of a record to staged rows, bf16.
template <int HeadDim, bool Keys, int Bits>
__device__ __forceinline__ void read_groups(const RecordBytes& src, uint8_t* staged) {
  using G = Groups<HeadDim, Keys>;
  using W = GroupWords<Bits>;
  for (uint32_t group = threadIdx.x; group < G::kCount; group += 2 * HeadDim) {
    const float zero = fp16_value(*reinterpret_cast<const uint16_t*>(src.at(2 * group)));
    const float range =
        fp16_value(*reinterpret_cast<const uint16_t*>(src.at(2 * (G::kCount + group))));
    uint32_t words[W::kWords];
#pragma unroll
    for (int w = 0; w < W::kWords; w++)
      words[w] =
          *reinterpret_cast<const uint32_t*>(src.at(4 * G::kCount + 4 * (w * G::kCount + group)));
#pragma unroll
    for (int i = 0; i < 32; i++) {
      const uint32_t code = words[W::word(i)] >> W::shift(i) & W::levels(i);
      const float x = __fadd_rn(
          __fmul_rn(static_cast<float>(code), __fdiv_rn(range, static_cast<float>(W::levels(i)))),
          zero);
      const uint32_t channel = G::channel(group, i);
      *reinterpret_cast<uint16_t*>(
          staged + staged_offset<HeadDim>(G::token(group, i), channel / 8) + channel % 8 * 2) =
          static_cast<uint16_t>(pack_bf16(x, 0.f));
    }
  }
  __syncthreads();
}

template <int Bits>
struct GroupedCodec {
  static constexpr bool kKeysOnly = false;

  template <int HeadDim, bool Keys>
  __device__ __forceinline__ static bool write(const RecordBytes& dst, const Layout&,
                                               const uint8_t* staged, PageShared& s,
                                               uint64_t& failure) {
    return write_groups<HeadDim, Keys, Bits>(dst, staged, s, failure);
  }
  template <int HeadDim, bool Keys>
  __device__ __forceinline__ static void read(const RecordBytes& src, const Layout&,
                                              uint8_t* staged, PageShared&) {
    read_groups<HeadDim, Keys, Bits>(src, staged);
  }
};
template <int Bits>
struct GroupedFormat : AnyFormat {
  using Encoder = GroupedCodec<Bits>;
  using Dequantiser = GroupedCodec<Bits>;
};

}  // namespace ebb
