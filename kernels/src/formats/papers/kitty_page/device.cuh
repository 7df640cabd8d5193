// Kitty's page of two tensors (mod.rs), operation by operation as the CPU's codec.
//
// Record, T = 128 - Sink tokens behind `Sink` rows of bf16, n boosted channels of D: `[rows][scale,
// min; fp16 x 2; D][low; D T/4 bytes][high; n T/4 bytes][index; D bytes]`, both tensors channel by
// channel, four tokens a byte.
#pragma once
#include "cuda/formats/kitty.cuh"
#include "cuda/formats/pool.cuh"
#include "cuda/formats/sink.cuh"

namespace ebb {

template <int Slabs, uint32_t Sink, int HeadDim>
struct KittyPageParts {
  static constexpr uint32_t kBoosted = Slabs * (HeadDim / 8), kChannelBytes = (128 - Sink) / 4;
  static constexpr uint32_t kMeta = 2 * Sink * HeadDim, kLow = kMeta + 4 * HeadDim,
                            kHigh = kLow + kChannelBytes * HeadDim,
                            kIndex = kHigh + kChannelBytes * kBoosted;
  // Words of 16 tokens.
  static constexpr uint32_t kWords = kChannelBytes / 4;
  static_assert(kIndex % 16 == 0 && kChannelBytes % 4 == 0);
};

template <int Slabs, uint32_t Sink>
struct KittyPageCodec {
  static constexpr bool kKeysOnly = true;

  template <int HeadDim, bool Keys>
  __device__ __forceinline__ static bool write(const RecordBytes& dst, const Layout&,
                                               const uint8_t* staged, PageShared& s,
                                               uint64_t& failure) {
    using P = KittyPageParts<Slabs, Sink, HeadDim>;
    const uint32_t tid = threadIdx.x;
    if (!find_bounds<HeadDim>(staged, s, failure)) return false;
    rank_rows<HeadDim>(staged, Sink, P::kBoosted, s);
    if (tid < HeadDim) {
      const float levels = s.rank[tid] < P::kBoosted ? 15.f : 3.f;
      const float min = s.zero[tid], exact = __fdiv_rn(__fsub_rn(s.scale[tid], min), levels);
      const float scale = exact < 1e-6f ? 1e-6f : exact;
      s.scale[tid] = scale;
      s.meta[2 * tid] = static_cast<uint16_t>(fp16_round_nearest(scale));
      s.meta[2 * tid + 1] = static_cast<uint16_t>(fp16_round_nearest(min));
    }
    __syncthreads();
    write_sink<HeadDim, Sink>(dst, staged);
    if (tid < HeadDim / 4)
      *reinterpret_cast<uint4*>(dst.at(P::kMeta + 16 * tid)) =
          reinterpret_cast<const uint4*>(s.meta)[tid];
    if (tid < HeadDim / 16)
      *reinterpret_cast<uint4*>(dst.at(P::kIndex + 16 * tid)) =
          reinterpret_cast<const uint4*>(s.rank)[tid];
    for (uint32_t w = tid; w < HeadDim * P::kWords; w += 2 * HeadDim) {
      const uint32_t channel = w / P::kWords, first = Sink + w % P::kWords * 16;
      const uint32_t slot = s.rank[channel], last = slot < P::kBoosted ? 15 : 3;
      uint32_t low = 0, high = 0;
      for (uint32_t k = 0; k < 16; k++) {
        const float x = widen_bf16(staged_bits<HeadDim>(staged, first + k, channel));
        const float steps =
            __fadd_rn(__fdiv_rn(__fsub_rn(x, s.zero[channel]), s.scale[channel]), 0.5f);
        uint32_t code = static_cast<uint32_t>(static_cast<int32_t>(steps));
        code = code < last ? code : last;
        low |= (code & 3) << 2 * k, high |= code >> 2 << 2 * k;
      }
      const uint32_t byte = w % P::kWords * 4;
      *reinterpret_cast<uint32_t*>(dst.at(P::kLow + channel * P::kChannelBytes + byte)) = low;
      if (slot < P::kBoosted)
        *reinterpret_cast<uint32_t*>(dst.at(P::kHigh + slot * P::kChannelBytes + byte)) = high;
    }
    return true;
  }

  // Least and greatest value of every channel into `s.zero` and `s.scale`. False if there are no
  // codes for them; then thread 0 has the failure.
  template <int HeadDim>
  __device__ __forceinline__ static bool find_bounds(const uint8_t* staged, PageShared& s,
                                                     uint64_t& failure) {
    const uint32_t tid = threadIdx.x;
    if (tid == 0) s.bad_group = s.bad_element = kSound;
    __syncthreads();
    if (tid < HeadDim) {
      float least = INFINITY, greatest = -INFINITY;
      for (uint32_t token = Sink; token < 128; token++) {
        const uint32_t bits = staged_bits<HeadDim>(staged, token, tid);
        if ((bits & 0x7fffu) >= kBeyondFp16) atomicMin(&s.bad_element, token * HeadDim + tid);
        const float x = widen_bf16(bits);
        least = x < least ? x : least, greatest = x > greatest ? x : greatest;
      }
      s.zero[tid] = least, s.scale[tid] = greatest;
      if (__fsub_rn(greatest, least) > kFp16Max) atomicMin(&s.bad_group, tid);
    }
    __syncthreads();
    const uint32_t element = s.bad_element, bad = s.bad_group;
    if (element != kSound) {
      failure = value_failure(element,
                              staged_bits<HeadDim>(staged, element / HeadDim, element % HeadDim));
      return false;
    }
    if (bad == kSound) return true;
    failure = range_failure(kChannelRange, bad, s.zero[bad], s.scale[bad]);
    return false;
  }

  template <int HeadDim, bool Keys>
  __device__ __forceinline__ static void read(const RecordBytes& src, const Layout&,
                                              uint8_t* staged, PageShared& s) {
    using P = KittyPageParts<Slabs, Sink, HeadDim>;
    const uint32_t tid = threadIdx.x;
    if (tid < HeadDim) {
      const uint32_t meta = *reinterpret_cast<const uint32_t*>(src.at(P::kMeta + 4 * tid));
      s.scale[tid] = fp16_value(meta & 0xffffu);
      s.zero[tid] = fp16_value(meta >> 16);
      s.rank[tid] = *src.at(P::kIndex + tid);
    }
    __syncthreads();
    read_sink<HeadDim, Sink>(src, staged);
    for (uint32_t w = tid; w < HeadDim * P::kWords; w += 2 * HeadDim) {
      const uint32_t channel = w / P::kWords, byte = w % P::kWords * 4, slot = s.rank[channel];
      const uint32_t low =
          *reinterpret_cast<const uint32_t*>(src.at(P::kLow + channel * P::kChannelBytes + byte));
      uint32_t high = 0;
      if (slot < P::kBoosted)
        high =
            *reinterpret_cast<const uint32_t*>(src.at(P::kHigh + slot * P::kChannelBytes + byte));
      for (uint32_t k = 0; k < 16; k++) {
        const uint32_t code = (low >> 2 * k & 3) | (high >> 2 * k & 3) << 2;
        const float x =
            __fadd_rn(__fmul_rn(static_cast<float>(code), s.scale[channel]), s.zero[channel]);
        stage_value<HeadDim>(staged, Sink + 4 * byte + k, channel, x);
      }
    }
    __syncthreads();
  }
};
template <int Slabs, uint32_t Sink>
struct KittyPageFormat : AnyFormat {
  using Encoder = KittyPageCodec<Slabs, Sink>;
  using Dequantiser = KittyPageCodec<Slabs, Sink>;
};

}  // namespace ebb
