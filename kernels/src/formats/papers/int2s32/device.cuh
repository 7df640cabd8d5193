// Values whose first 32 tokens are bf16, and whose others have int2's codes (mod.rs).
//
// Record: `[rows; 32][zero; 96][range; 96]` in fp16, then token by token 2-bit codes of the
// channels.
#pragma once
#include "cuda/formats/sink.cuh"

namespace ebb {

struct Int2SinkCodec {
  static constexpr bool kKeysOnly = false;
  static constexpr uint32_t kSink = 32, kTokens = 128 - kSink;

  template <int HeadDim>
  struct Parts {
    static constexpr uint32_t kMeta = 2 * kSink * HeadDim, kCodes = kMeta + 4 * kTokens;
    // Words of 16 channels, of a token.
    static constexpr uint32_t kWords = HeadDim / 16;
  };

  template <int HeadDim, bool Keys>
  __device__ __forceinline__ static bool write(const RecordBytes& dst, const Layout&,
                                               const uint8_t* staged, PageShared& s,
                                               uint64_t& failure) {
    using P = Parts<HeadDim>;
    const uint32_t tid = threadIdx.x;
    if (!find_tokens<HeadDim>(dst, staged, s, failure)) return false;
    write_sink<HeadDim, kSink>(dst, staged);
    for (uint32_t w = tid; w < kTokens * P::kWords; w += 2 * HeadDim) {
      const uint32_t token = kSink + w / P::kWords, first = w % P::kWords * 16;
      uint32_t word = 0;
      for (uint32_t k = 0; k < 16; k++) {
        const float x = widen_bf16(staged_bits<HeadDim>(staged, token, first + k));
        // By way of 8 and 4 bits, as int2.
        const uint32_t eight = code_of(x, s.zero[token], s.scale[token], 255.f);
        word |= ((eight + 8) / 17 + 2) / 5 << 2 * k;
      }
      *reinterpret_cast<uint32_t*>(dst.at(P::kCodes + 4 * w)) = word;
    }
    return true;
  }

  // Zeros and ranges of the tokens behind the sink, into the record; zeros and 8-bit steps per unit
  // into `s`. False if there are none; then thread 0 has the failure.
  template <int HeadDim>
  __device__ __forceinline__ static bool find_tokens(const RecordBytes& dst, const uint8_t* staged,
                                                     PageShared& s, uint64_t& failure) {
    using P = Parts<HeadDim>;
    const uint32_t token = threadIdx.x;
    if (token == 0) s.bad_group = s.bad_element = kSound;
    __syncthreads();
    if (kSink <= token && token < 128) {
      float least = INFINITY, greatest = -INFINITY;
      bool within = true;
      for (uint32_t channel = 0; channel < HeadDim; channel++) {
        const uint32_t bits = staged_bits<HeadDim>(staged, token, channel);
        if ((bits & 0x7fffu) >= kBeyondFp16) {
          within = false;
          atomicMin(&s.bad_element, token * HeadDim + channel);
        }
        const float x = widen_bf16(bits);
        least = x < least ? x : least, greatest = x > greatest ? x : greatest;
      }
      if (!within) {
        atomicMin(&s.bad_group, 2 * token);
      } else {
        const uint32_t zero_bits = fp16_round_down(least);
        const float zero = fp16_value(zero_bits), exact = __fsub_rn(greatest, zero);
        if (exact > kFp16Max) {
          atomicMin(&s.bad_group, 2 * token + 1);
          s.zero[token] = least, s.scale[token] = greatest;
        } else {
          const uint32_t range_bits = fp16_round_up(exact), at = P::kMeta + 2 * (token - kSink);
          *reinterpret_cast<uint16_t*>(dst.at(at)) = static_cast<uint16_t>(zero_bits);
          *reinterpret_cast<uint16_t*>(dst.at(at + 2 * kTokens)) =
              static_cast<uint16_t>(range_bits);
          s.zero[token] = zero;
          s.scale[token] = steps_per_unit(fp16_value(range_bits), 255.f);
        }
      }
    }
    __syncthreads();
    const uint32_t bad = s.bad_group, element = s.bad_element;
    if (bad == kSound) return true;
    failure = bad % 2 == 1 ? range_failure(kTokenRange, bad / 2, s.zero[bad / 2], s.scale[bad / 2])
                           : value_failure(element, staged_bits<HeadDim>(staged, element / HeadDim,
                                                                         element % HeadDim));
    return false;
  }

  template <int HeadDim, bool Keys>
  __device__ __forceinline__ static void read(const RecordBytes& src, const Layout&,
                                              uint8_t* staged, PageShared&) {
    using P = Parts<HeadDim>;
    read_sink<HeadDim, kSink>(src, staged);
    for (uint32_t w = threadIdx.x; w < kTokens * P::kWords; w += 2 * HeadDim) {
      const uint32_t token = w / P::kWords, first = w % P::kWords * 16;
      const uint32_t at = P::kMeta + 2 * token;
      const float zero = fp16_value(*reinterpret_cast<const uint16_t*>(src.at(at)));
      const float range = fp16_value(*reinterpret_cast<const uint16_t*>(src.at(at + 2 * kTokens)));
      const float step = __fdiv_rn(range, 3.f);
      const uint32_t word = *reinterpret_cast<const uint32_t*>(src.at(P::kCodes + 4 * w));
      for (uint32_t k = 0; k < 16; k++)
        stage_value<HeadDim>(
            staged, kSink + token, first + k,
            __fadd_rn(__fmul_rn(static_cast<float>(word >> 2 * k & 3), step), zero));
    }
    __syncthreads();
  }
};

}  // namespace ebb

template <>
struct ebb::Format<ebb::kInt2Sink32> : ebb::AnyFormat {
  using Encoder = ebb::Int2SinkCodec;
  using Dequantiser = ebb::Int2SinkCodec;
};
