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
                                               uint8_t* scratch, PageShared& s, uint64_t& failure) {
    using P = Parts<HeadDim>;
    const uint32_t tid = threadIdx.x;
    write_sink<HeadDim, kSink>(dst, scratch);
    __syncthreads();
    // Tokens are quantised each by itself; what the sink holds is no matter.
    for (uint32_t v = tid; v < kSink * HeadDim / 8; v += 2 * HeadDim)
      *reinterpret_cast<uint4*>(scratch +
                                staged_offset<HeadDim>(v / (HeadDim / 8), v % (HeadDim / 8))) = {};
    __syncthreads();
    if (!find_ranges<HeadDim, false>(scratch, reinterpret_cast<uint16_t*>(scratch + 256 * HeadDim),
                                     s, 255.f, failure))
      return false;
    if (tid < kTokens) {
      auto store = [&](uint32_t at, uint32_t group) {
        *reinterpret_cast<uint16_t*>(dst.at(P::kMeta + 2 * at)) = s.meta[group];
      };
      store(tid, kSink + tid);
      store(kTokens + tid, 128 + kSink + tid);
    }
    for (uint32_t w = tid; w < kTokens * P::kWords; w += 2 * HeadDim) {
      const uint32_t token = kSink + w / P::kWords, first = w % P::kWords * 16;
      uint32_t word = 0;
      for (uint32_t k = 0; k < 16; k++) {
        const float x = widen_bf16(staged_bits<HeadDim>(scratch, token, first + k));
        // By way of 8 and 4 bits, as int2.
        const uint32_t eight = code_of(x, s.zero[token], s.scale[token], 255.f);
        word |= ((eight + 8) / 17 + 2) / 5 << 2 * k;
      }
      *reinterpret_cast<uint32_t*>(dst.at(P::kCodes + 4 * w)) = word;
    }
    return true;
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
