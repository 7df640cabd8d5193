// Planes of codes as A operands of fp16 (the order of codes is formats/order/README.md): m16n8k16,
// a code as the subnormal number that its bits are where they lie, 2^-24 of it times the place of
// its lowest bit. So most of them are freed of others by one instruction for two.
#pragma once
#include "../common/ptx.cuh"

namespace ebb {

// Two neighbouring fragments, of so many words of a lane's. Rows of the lower half are `kLower`
// times too large, fragments of odd numbers `kOdd` times.
// A width that is not here is specialised by the folder of a format that has it.
template <int Bits>
struct CodeHalves {
  static constexpr int kLevels = (1 << Bits) - 1;
  static constexpr bool kSplit = Bits == 3;  // whether the highest bits have a plane of their own
  static constexpr int kWords = Bits == 8 ? 4 : Bits == 4 ? 2 : 1;  // 3 bits: of the low two
  static constexpr float kLower = Bits == 2 || Bits == 3 ? 4.f : Bits == 4 ? 16.f : 1.f;
  static constexpr uint32_t kOdd = Bits == 2 || Bits == 3 ? 16 : 1;

  __device__ __forceinline__ static void unpack(const uint32_t* w, uint32_t (&even)[4],
                                                uint32_t (&odd)[4]) {
    if (Bits == 8) {
#pragma unroll
      for (int h = 0; h < 2; h++) {
        even[2 * h] = w[h] & 0x00ff00ff, even[2 * h + 1] = __byte_perm(w[h], 0, 0x4341);
        odd[2 * h] = w[2 + h] & 0x00ff00ff, odd[2 * h + 1] = __byte_perm(w[2 + h], 0, 0x4341);
      }
    } else if (Bits == 4) {
      even[0] = w[0] & 0x000f000f, even[1] = w[0] & 0x00f000f0;
      even[2] = w[0] >> 8 & 0x000f000f, even[3] = w[0] >> 8 & 0x00f000f0;
      odd[0] = w[1] & 0x000f000f, odd[1] = w[1] & 0x00f000f0;
      odd[2] = w[1] >> 8 & 0x000f000f, odd[3] = w[1] >> 8 & 0x00f000f0;
    } else {
      const uint32_t x = w[0], y = w[0] >> 8;
      even[0] = x & 0x00030003, even[1] = x & 0x000c000c;
      even[2] = y & 0x00030003, even[3] = y & 0x000c000c;
      odd[0] = x & 0x00300030, odd[1] = x & 0x00c000c0;
      odd[2] = y & 0x00300030, odd[3] = y & 0x00c000c0;
    }
  }
  // Adds the third bits. A word of their plane has two such pairs of fragments; `which`: of them.
  __device__ __forceinline__ static void add_third(uint32_t w, int which, uint32_t (&even)[4],
                                                   uint32_t (&odd)[4]) {
    const uint32_t x = which == 0 ? w << 2 : w << 1, y = which == 0 ? w >> 6 : w >> 7;
    even[0] |= x & 0x00040004, even[1] |= x & 0x00100010;
    even[2] |= y & 0x00040004, even[3] |= y & 0x00100010;
    odd[0] |= x & 0x00400040, odd[1] |= x & 0x01000100;
    odd[2] |= y & 0x00400040, odd[3] |= y & 0x01000100;
  }
};

}  // namespace ebb
