// Codes in registers: the order of a low-bit plane (formats/order/README.md) makes every width a
// matter of one lane.
//
// A record is handled by 2 * head_dim threads. A thread holds the codes of 8 fragments,
// `q[fragment][h]`, a byte each: bytes (e = 0, r = 0), (e = 0, r = 1), (e = 1, r = 0), (e = 1, r =
// 1), which is the word of an 8-bit plane. Fragment i of warp w is fragment 8 w + i of the plane,
// at any width, so widths are converted without a word to another lane.
//
// Rows and columns of the plane: keys `[token][channel]`, values `[channel][token]`. Zeros and
// ranges go by column on both sides.
#pragma once
#include "../common/ptx.cuh"

namespace ebb {

using Codes = uint32_t[8][2];

// Byte of the plane where the thread's vector `v` of 16 bytes lies, of `Bits / 2` (a 2-bit plane:
// one).
template <int Bits>
__device__ __forceinline__ uint32_t vector_offset(uint32_t v) {
  return ((threadIdx.x / 32 * (Bits / 2) + v) * 32 + threadIdx.x % 32) * 16;
}

// Two neighbours in both halves of a word, `Bits` wide and beside each other, to a byte each, and
// back.
template <int Bits>
__device__ __forceinline__ uint32_t spread(uint32_t x) {
  constexpr uint32_t kLow = ((1u << Bits) - 1) * 0x00010001u;
  return (x & kLow) | (x << (8 - Bits) & kLow << 8);
}
template <int Bits>
__device__ __forceinline__ uint32_t join(uint32_t q) {
  constexpr uint32_t kLow = ((1u << Bits) - 1) * 0x00010001u;
  return (q & kLow) | (q >> (8 - Bits) & kLow << Bits);
}

__device__ __forceinline__ uint4 as_vector(const uint32_t (&w)[4]) {
  return make_uint4(w[0], w[1], w[2], w[3]);
}

// `At` gives the address of a byte of the plane.
template <class At>
__device__ __forceinline__ void load_codes(Codes& q, uint32_t bits, At at) {
  if (bits == 8) {
#pragma unroll
    for (int v = 0; v < 4; v++) {
      const uint4 w = *reinterpret_cast<const uint4*>(at(vector_offset<8>(v)));
      q[2 * v][0] = w.x, q[2 * v][1] = w.y, q[2 * v + 1][0] = w.z, q[2 * v + 1][1] = w.w;
    }
  } else if (bits == 4) {
#pragma unroll
    for (int v = 0; v < 2; v++) {
      const uint4 w = *reinterpret_cast<const uint4*>(at(vector_offset<4>(v)));
      const uint32_t words[4] = {w.x, w.y, w.z, w.w};
#pragma unroll
      for (int f = 0; f < 4; f++)
        for (int h = 0; h < 2; h++) q[4 * v + f][h] = spread<4>(words[f] >> 8 * h & 0x00ff00ffu);
    }
  } else {
    const uint4 w = *reinterpret_cast<const uint4*>(at(vector_offset<2>(0)));
    const uint32_t words[4] = {w.x, w.y, w.z, w.w};
#pragma unroll
    for (int f = 0; f < 8; f++)
      for (int h = 0; h < 2; h++)
        q[f][h] = spread<2>(words[f / 2] >> (8 * h + 4 * (f % 2)) & 0x000f000fu);
  }
}

// Codes may have bits above the plane's width; those are not stored.
template <class At>
__device__ __forceinline__ void store_codes(const Codes& q, uint32_t bits, At at) {
  if (bits == 8) {
#pragma unroll
    for (int v = 0; v < 4; v++)
      *reinterpret_cast<uint4*>(at(vector_offset<8>(v))) =
          make_uint4(q[2 * v][0], q[2 * v][1], q[2 * v + 1][0], q[2 * v + 1][1]);
  } else if (bits == 4) {
#pragma unroll
    for (int v = 0; v < 2; v++) {
      uint32_t words[4];
#pragma unroll
      for (int f = 0; f < 4; f++)
        words[f] = join<4>(q[4 * v + f][0]) | join<4>(q[4 * v + f][1]) << 8;
      *reinterpret_cast<uint4*>(at(vector_offset<4>(v))) = as_vector(words);
    }
  } else {
    uint32_t words[4] = {};
#pragma unroll
    for (int f = 0; f < 8; f++)
      for (int h = 0; h < 2; h++) words[f / 2] |= join<2>(q[f][h]) << (8 * h + 4 * (f % 2));
    *reinterpret_cast<uint4*>(at(vector_offset<2>(0))) = as_vector(words);
  }
}

// Where the thread's half of a vector lies in a plane of which it has no more.
__device__ __forceinline__ uint32_t half_vector_offset() {
  return (threadIdx.x / 64 * 32 + threadIdx.x % 32) * 16 + threadIdx.x / 32 % 2 * 8;
}

// A 1-bit plane: bit `bit` of every code.
template <class At>
__device__ __forceinline__ void store_high_bits(const Codes& q, uint32_t bit, At at) {
  uint32_t words[2] = {};
#pragma unroll
  for (int f = 0; f < 8; f++) {
    for (int h = 0; h < 2; h++) {
      const uint32_t high = q[f][h] >> bit & 0x01010101u;
      words[f / 4] |= ((high & 0x00010001u) | (high >> 6 & 0x00040004u))
                      << (8 * h + 4 * (f % 2) + f / 2 % 2);
    }
  }
  *reinterpret_cast<uint2*>(at(half_vector_offset())) = make_uint2(words[0], words[1]);
}

template <class At>
__device__ __forceinline__ void add_high_bits(Codes& q, uint32_t bit, At at) {
  const uint2 v = *reinterpret_cast<const uint2*>(at(half_vector_offset()));
  const uint32_t words[2] = {v.x, v.y};
#pragma unroll
  for (int f = 0; f < 8; f++) {
    for (int h = 0; h < 2; h++) {
      const uint32_t x = words[f / 4] >> (8 * h + 4 * (f % 2) + f / 2 % 2);
      q[f][h] |= ((x & 0x00010001u) | (x & 0x00040004u) << 6) << bit;
    }
  }
}

// PM-KVQ's Equivalent Right Shift (formats/ladder/shift.rs), four codes at once: (X + 8) div 17 and
// (X + 2) div 5.
__device__ __forceinline__ uint32_t shift_8_to_4(uint32_t q) {
  const uint32_t even = ((q & 0x00ff00ffu) + 0x00080008u) * 241u >> 12 & 0x000f000fu;
  const uint32_t odd = ((q >> 8 & 0x00ff00ffu) + 0x00080008u) * 241u >> 12 & 0x000f000fu;
  return even | odd << 8;
}
__device__ __forceinline__ uint32_t shift_4_to_2(uint32_t q) {
  return (q + 0x02020202u) * 13u >> 6 & 0x03030303u;
}

// First of the two columns, e = 0 and 1, of fragment i's column half h; and its row r = 0 (r = 1 is
// 8 further).
template <int HeadDim, bool Keys>
struct Fragments {
  static constexpr int kThreads = 2 * HeadDim, kWarps = kThreads / 32;
  static constexpr int kColumns = Keys ? HeadDim : 128;
  static constexpr int kTiles = kColumns / 16;                 // of a row tile
  static constexpr int kWarpTiles = kTiles < 8 ? kTiles : 8;   // of those, a warp's
  static constexpr uint32_t kTileWarps = kTiles / kWarpTiles;  // warps of a row tile
  static_assert(8 % kWarpTiles == 0 && kTiles % kWarpTiles == 0);
  // First of the warp's column tiles.
  __device__ __forceinline__ static uint32_t first_tile() {
    return kTileWarps == 1 ? 0 : threadIdx.x / 32 % kTileWarps * kWarpTiles;
  }
  __device__ __forceinline__ static uint32_t column_tile(int i) {
    return first_tile() + i % kWarpTiles;
  }
  __device__ __forceinline__ static uint32_t row_tile(int i) {
    return threadIdx.x / 32 / kTileWarps * (8 / kWarpTiles) + i / kWarpTiles;
  }
  __device__ __forceinline__ static uint32_t column(int i, int h) {
    return 16 * column_tile(i) + 8 * h + 2 * (threadIdx.x % 4);
  }
  __device__ __forceinline__ static uint32_t row(int i) {
    return 16 * row_tile(i) + threadIdx.x % 32 / 4;
  }
};

// 16-bit rows `[128 tokens][head_dim]` in shared memory: chunks of 16 bytes, swizzled so that eight
// rows of a chunk, and a row of chunks, lie in different banks.
template <int HeadDim>
__device__ __forceinline__ uint32_t staged_offset(uint32_t token, uint32_t chunk) {
  return token * 2 * HeadDim + (chunk ^ (token & 7)) * 16;
}

}  // namespace ebb
