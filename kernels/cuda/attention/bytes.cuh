// Products with planes of codes on tensor cores (BitDecoding, arXiv 2503.18773; the order of codes
// is formats/order/README.md), in bytes: m16n8k32, a code as the unsigned byte that it is.
#pragma once
#include "../common/ptx.cuh"

namespace ebb {

// The A operand of fragments 2 f and 2 f + 1 of a lane's words, in the order of bytes 2t, 2t + 8,
// 2t + 1, 2t + 9 of each. Rows of the lower half are `kLower` times too large.
// A width that is not here is specialised by the folder of a format that has it.
template <int Bits>
struct CodeBytes {
  static constexpr int kLevels = (1 << Bits) - 1;
  static constexpr bool kSplit = Bits == 3;  // whether the highest bits have a plane of their own
  // of fragments in a lane's vector of 16 bytes; 3 bits: of the low two
  static constexpr int kPairs = 8 / (Bits == 3 ? 2 : Bits);
  static constexpr float kLower = Bits == 2 || Bits == 3 ? 4.f : Bits == 4 ? 16.f : 1.f;

  __device__ __forceinline__ static void unpack(const uint4& v, int f, uint32_t (&a)[4]) {
    const uint32_t w[4] = {v.x, v.y, v.z, v.w};
    if (Bits == 8) {
#pragma unroll
      for (int i = 0; i < 2; i++) {
        a[2 * i] = __byte_perm(w[2 * i], w[2 * i + 1], 0x6240);
        a[2 * i + 1] = __byte_perm(w[2 * i], w[2 * i + 1], 0x7351);
      }
    } else if (Bits == 4) {
#pragma unroll
      for (int i = 0; i < 2; i++) {
        a[2 * i] = w[2 * f + i] & 0x0f0f0f0f;
        a[2 * i + 1] = w[2 * f + i] & 0xf0f0f0f0;
      }
    } else {
      const uint32_t x = w[f], y = w[f] >> 4;
      a[0] = x & 0x03030303, a[1] = x & 0x0c0c0c0c;
      a[2] = y & 0x03030303, a[3] = y & 0x0c0c0c0c;
    }
  }
  // Adds the third bits, from a vector of their plane, which has eight pairs.
  __device__ __forceinline__ static void add_third(const uint4& v, int f, uint32_t (&a)[4]) {
    const uint32_t w[4] = {v.x, v.y, v.z, v.w};
    const uint32_t x = f % 2 == 0 ? w[f / 2] << 2 : w[f / 2] << 1,
                   y = f % 2 == 0 ? w[f / 2] >> 2 : w[f / 2] >> 3;
    a[0] |= x & 0x04040404, a[1] |= x & 0x10101010;
    a[2] |= y & 0x04040404, a[3] |= y & 0x10101010;
  }
};

}  // namespace ebb
