// How a tile's side, 16 rows of D channels, lies in shared memory. Eight rows of a 16-byte chunk
// are in eight different banks, so that ldmatrix reads them at once.
#pragma once
#include "../common/pages.cuh"

namespace ebb {

// D a multiple of 64: rows of 128 bytes, one half (64 channels) after the other, chunk c of row r
// at c ^ (r % 8). Any other multiple of 16: rows that are an odd number of chunks apart.
template <int D>
struct Tile {
  static_assert(D % 16 == 0 && D >= 16 && D <= 256);
  static constexpr bool kSwizzled = D % 64 == 0;
  static constexpr int kChunks = D / 8;  // 16-byte chunks of a row
  static constexpr int kRow = kSwizzled ? 128 : 2 * D + 16;
  static constexpr int kBytes = kSwizzled ? kSubBlockTokens * D * 2 : kSubBlockTokens * kRow;

  // A chunk of a row.
  __device__ __forceinline__ static uint32_t at(uint32_t row, uint32_t chunk) {
    if constexpr (kSwizzled)
      return (chunk / 8) * 2048 + row * 128 + ((chunk ^ row) % 8) * 16;
    else
      return row * kRow + chunk * 16;
  }
  // From a chunk of the first 16 channels, less than 128 bytes of which are its place in the row,
  // to the same chunk of the 16 channels `step`: so many bytes on, with `flip` in the place.
  __device__ __forceinline__ static constexpr int step(int step) {
    return kSwizzled ? (step / 4) * 2048 : step * 32;
  }
  __device__ __forceinline__ static constexpr int flip(int step) {
    return kSwizzled ? (step % 4) * 32 : 0;
  }
};

}  // namespace ebb
