// Kitty: 2-bit keys whose loudest channels keep 4 bits (formats/kitty/README.md).
//
// Record, n boosted channels of D: `[zero; D][range; D][low plane][index; D bytes][slab; 4 D
// bytes]...`.
#pragma once
#include "quantise.cuh"

namespace ebb {

// Columns of a thread: `(fragment of a row tile, h, e)`.
template <int HeadDim>
constexpr int kThreadColumns = 4 * Fragments<HeadDim, true>::kWarpTiles;

// Adds up a value per column over the rows of a record into `s.sums`, from a value per thread and
// column. The halves of a butterfly: each lane ends with an eighth of its columns.
template <int HeadDim>
__device__ __forceinline__ void add_columns(uint32_t (&of_column)[kThreadColumns<HeadDim>],
                                            SharedOf<HeadDim>& s) {
  const uint32_t lane = threadIdx.x % 32, tile = Fragments<HeadDim, true>::first_tile();
  uint32_t first = 0;
  int count = kThreadColumns<HeadDim>;
#pragma unroll
  for (int mask = 16; mask >= 4; mask /= 2) {
    count /= 2;
    const bool upper = lane & mask;
    first += upper ? count : 0;
#pragma unroll
    for (int i = 0; i < kThreadColumns<HeadDim> / 2; i++) {
      if (i >= count) continue;
      const uint32_t send = upper ? of_column[i] : of_column[i + count];
      const uint32_t keep = upper ? of_column[i + count] : of_column[i];
      of_column[i] = keep + __shfl_xor_sync(~0u, send, mask);
    }
  }
#pragma unroll
  for (int i = 0; i < kThreadColumns<HeadDim> / 8; i++) {
    const uint32_t c = first + i;
    atomicAdd(&s.sums[(tile + c / 4) * 16 + c / 2 % 2 * 8 + 2 * (lane % 4) + c % 2], of_column[i]);
  }
}

// Ranks of the `boosted` first channels into `s.rank`; `before(a, b)`: whether channel a ranks
// before b. Clears and uses `s.louder`.
template <int HeadDim, class Before>
__device__ __forceinline__ void rank_by(uint32_t boosted, SharedOf<HeadDim>& s, Before before) {
  // Two threads a channel.
  const uint32_t tid = threadIdx.x, channel = tid % HeadDim, part = tid / HeadDim * (HeadDim / 2);
  uint32_t louder = 0;
  for (uint32_t c = part; c < part + HeadDim / 2; c++) louder += before(c, channel);
  if (tid < HeadDim) s.louder[tid] = 0;
  __syncthreads();
  atomicAdd(&s.louder[channel], louder);
  __syncthreads();
  if (tid < HeadDim)
    s.rank[tid] = static_cast<uint8_t>(s.louder[tid] < boosted ? s.louder[tid] : boosted);
  __syncthreads();
}

// Ranks of the `boosted` loudest channels of a 4-bit page whose metadata is in `s`, into `s.rank`.
// In exact integers, so that no order matters: with N the tokens below zero, loudness is 15 z
// (128 - 2 |N|) + R (sum c - 2 sum over N c).
template <int HeadDim>
__device__ __forceinline__ void rank_channels(const Codes& q, uint32_t boosted,
                                              SharedOf<HeadDim>& s) {
  using F = Fragments<HeadDim, true>;
  const uint32_t tid = threadIdx.x;
  if (tid < HeadDim) {
    const int64_t zero = 15 * fp16_units(s.meta[tid]), range = fp16_units(s.meta[HeadDim + tid]);
    uint32_t first = 0;
    for (int c = 0; c < 16; c++) first += zero + range * c < 0;
    s.first_positive[tid] = static_cast<uint8_t>(first);
    s.sums[tid] = 0;
  }
  __syncthreads();
  // Sum of codes, of codes below zero, and tokens below zero: at most 1920, 1920 and 128.
  uint32_t of_column[kThreadColumns<HeadDim>] = {};
#pragma unroll
  for (int i = 0; i < 8; i++) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
      const uint32_t column = F::column(i, h);
#pragma unroll
      for (int e = 0; e < 2; e++) {
        const uint32_t first = s.first_positive[column + e];
#pragma unroll
        for (int r = 0; r < 2; r++) {
          const uint32_t code = q[i][h] >> (16 * e + 8 * r) & 0xff;
          of_column[i % F::kWarpTiles * 4 + 2 * h + e] +=
              code | (code < first ? code << 11 | 1u << 22 : 0u);
        }
      }
    }
  }
  add_columns<HeadDim>(of_column, s);
  __syncthreads();
  if (tid < HeadDim) {
    const int64_t zero = 15 * fp16_units(s.meta[tid]), range = fp16_units(s.meta[HeadDim + tid]);
    const int64_t codes = s.sums[tid] & 2047, codes_below = s.sums[tid] >> 11 & 2047,
                  below = s.sums[tid] >> 22;
    // Of equals the lower one is louder. Below 2^52 before.
    s.loudness[tid] =
        (zero * (128 - 2 * below) + range * (codes - 2 * codes_below)) * 128 + 127 - tid;
  }
  __syncthreads();
  const int64_t mine = s.loudness[tid % HeadDim];
  rank_by<HeadDim>(boosted, s, [&](uint32_t c, uint32_t) { return s.loudness[c] > mine; });
}

// floor(|x| 2^24) of a bf16 within fp16.
__device__ __forceinline__ uint64_t bf16_magnitude(uint32_t bits) {
  const uint32_t exponent = bits >> 7 & 0xff;
  const uint64_t significand = 0x80u | (bits & 0x7fu);
  if (exponent >= 110) return significand << (exponent - 110);
  return exponent >= 103 ? significand >> (110 - exponent) : 0;
}

// Ranks of the `boosted` loudest channels of the staged rows from token `first` on, into `s.rank`.
template <int HeadDim>
__device__ __forceinline__ void rank_rows(const uint8_t* staged, uint32_t first, uint32_t boosted,
                                          SharedOf<HeadDim>& s) {
  const uint32_t tid = threadIdx.x;
  __syncthreads();  // `s.loudness` may still be read.
  if (tid < HeadDim) {
    uint64_t sum = 0;
    for (uint32_t token = first; token < 128; token++)
      sum += bf16_magnitude(staged_bits<HeadDim>(staged, token, tid));
    // Of equals the lower one is louder. Below 2^47 before.
    s.loudness[tid] = static_cast<int64_t>(sum * 128 + 127 - tid);
  }
  __syncthreads();
  const int64_t mine = s.loudness[tid % HeadDim];
  rank_by<HeadDim>(boosted, s, [&](uint32_t c, uint32_t) { return s.loudness[c] > mine; });
}

// Ranks by 128 bits: `s.loudness` and `s.loudness_low`.
template <int HeadDim>
__device__ __forceinline__ void rank_wide(uint32_t boosted, SharedOf<HeadDim>& s) {
  __syncthreads();
  const int64_t mine = s.loudness[threadIdx.x % HeadDim];
  const uint64_t low = s.loudness_low[threadIdx.x % HeadDim];
  rank_by<HeadDim>(boosted, s, [&](uint32_t c, uint32_t channel) {
    if (s.loudness[c] != mine) return s.loudness[c] > mine;
    return s.loudness_low[c] > low || (s.loudness_low[c] == low && c < channel);
  });
}

// Ranks of the channels of a 4-bit page with the greatest variance: R^2 (128 sum c^2 - (sum c)^2),
// below 2^103.
template <int HeadDim>
__device__ __forceinline__ void rank_by_variance(const Codes& q, uint32_t boosted,
                                                 SharedOf<HeadDim>& s) {
  using F = Fragments<HeadDim, true>;
  const uint32_t tid = threadIdx.x;
  if (tid < HeadDim) s.sums[tid] = 0;
  __syncthreads();
  // Sums of codes and of squares: at most 1920 and 28800.
  uint32_t of_column[kThreadColumns<HeadDim>] = {};
#pragma unroll
  for (int i = 0; i < 8; i++) {
#pragma unroll
    for (int k = 0; k < 8; k++) {
      const uint32_t code = q[i][k / 4] >> (8 * (k % 4)) & 0xff;
      of_column[i % F::kWarpTiles * 4 + k / 2] += code | code * code << 11;
    }
  }
  add_columns<HeadDim>(of_column, s);
  __syncthreads();
  if (tid < HeadDim) {
    const uint64_t range = static_cast<uint64_t>(fp16_units(s.meta[HeadDim + tid]));
    const uint32_t sum = s.sums[tid] & 2047, squares = s.sums[tid] >> 11;
    const uint64_t scaled = range * (128 * squares - sum * sum);
    s.loudness[tid] = static_cast<int64_t>(__umul64hi(range, scaled));
    s.loudness_low[tid] = range * scaled;
  }
  rank_wide<HeadDim>(boosted, s);
}

// Ranks of channels drawn from the page's metadata: FNV-1a of it, then SplitMix64.
template <int HeadDim>
__device__ __forceinline__ void rank_at_random(uint32_t boosted, SharedOf<HeadDim>& s) {
  const uint8_t* const meta = reinterpret_cast<const uint8_t*>(s.meta);
  if (threadIdx.x < HeadDim) {
    uint64_t x = 0xcbf29ce484222325u;
    for (int i = 0; i < 4 * HeadDim; i++) x = (x ^ meta[i]) * 0x100000001b3u;
    x += (threadIdx.x + 1) * 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    s.loudness[threadIdx.x] = 0;
    s.loudness_low[threadIdx.x] = x ^ x >> 31;
  }
  rank_wide<HeadDim>(boosted, s);
}

// Ones over the codes of the channels of fragment i's half h whose rank is in `from .. to`.
template <int HeadDim>
__device__ __forceinline__ uint32_t rank_mask(const uint8_t* rank, int i, int h, uint32_t from,
                                              uint32_t to) {
  const uint32_t column = Fragments<HeadDim, true>::column(i, h);
  auto in = [&](uint32_t r) { return from <= r && r < to; };
  return (in(rank[column]) ? 0x0000ffffu : 0u) | (in(rank[column + 1]) ? 0xffff0000u : 0u);
}

// Codes of a word of a slab: calls `visit(token, rank in the slab, shift)` for all sixteen. Word
// `w` of 4 D bytes.
template <int HeadDim, class Visit>
__device__ __forceinline__ void for_slab_word(uint32_t w, Visit visit) {
  // Words that a lane has side by side, and column tiles of the slab.
  constexpr uint32_t kVector = HeadDim < 128 ? 2 : 4, kTiles = HeadDim > 128 ? HeadDim / 128 : 1;
  const uint32_t lane = w / kVector % 32, word = w / (32 * kVector) * kVector + w % kVector,
                 g = lane / 4, t = lane % 4;
#pragma unroll
  for (uint32_t k = 0; k < 16; k++) {
    const uint32_t e = k / 8, h = k / 4 % 2, odd = k / 2 % 2, r = k % 2, f = 2 * word + odd;
    // A slab of 8 columns has row tiles in place of column halves.
    const uint32_t token = (HeadDim == 64 ? 32 * f + 16 * h : 16 * (f / kTiles)) + g + 8 * r;
    const uint32_t rank = 2 * t + e + (HeadDim == 64 ? 0 : 8 * h) + 16 * (f % kTiles);
    visit(token, rank, 16 * e + 8 * h + 4 * odd + 2 * r);
  }
}

// The high bits of boosted channels, `high[rank][token]` in shared memory, from and to the slabs of
// a record. Slab 0 is that of the loudest eighth; a word a thread.
template <int HeadDim, class At>
__device__ __forceinline__ void load_slabs(uint8_t* high, uint32_t slabs, At at) {
  if (threadIdx.x >= slabs * HeadDim) return;
  const uint32_t word = *reinterpret_cast<const uint32_t*>(at(4 * threadIdx.x)),
                 first = threadIdx.x / HeadDim * (HeadDim / 8);
  for_slab_word<HeadDim>(threadIdx.x % HeadDim, [&](uint32_t token, uint32_t rank, uint32_t shift) {
    high[(first + rank) * 128 + token] = word >> shift & 3;
  });
}
template <int HeadDim, class At>
__device__ __forceinline__ void store_slabs(const uint8_t* high, uint32_t slabs, At at) {
  if (threadIdx.x >= slabs * HeadDim) return;
  const uint32_t first = threadIdx.x / HeadDim * (HeadDim / 8);
  uint32_t word = 0;
  for_slab_word<HeadDim>(threadIdx.x % HeadDim, [&](uint32_t token, uint32_t rank, uint32_t shift) {
    word |= static_cast<uint32_t>(high[(first + rank) * 128 + token]) << shift;
  });
  *reinterpret_cast<uint32_t*>(at(4 * threadIdx.x)) = word;
}

// Between `high` and the codes in registers; only channels of a rank below `boosted` have any.
template <int HeadDim>
__device__ __forceinline__ void add_high(Codes& q, const uint8_t* high, const uint8_t* rank,
                                         uint32_t boosted) {
  using F = Fragments<HeadDim, true>;
#pragma unroll
  for (int i = 0; i < 8; i++) {
#pragma unroll
    for (int k = 0; k < 4; k++) {
      const uint32_t r = rank[F::column(i, k / 2) + k % 2];
      if (r >= boosted) continue;
      const uint8_t* tokens = high + r * 128 + F::row(i);
      q[i][k / 2] |=
          (static_cast<uint32_t>(tokens[0]) << 2 | static_cast<uint32_t>(tokens[8]) << 10)
          << 16 * (k % 2);
    }
  }
}
template <int HeadDim>
__device__ __forceinline__ void take_high(const Codes& q, uint8_t* high, const uint8_t* rank,
                                          uint32_t boosted) {
  using F = Fragments<HeadDim, true>;
#pragma unroll
  for (int i = 0; i < 8; i++) {
#pragma unroll
    for (int k = 0; k < 4; k++) {
      const uint32_t r = rank[F::column(i, k / 2) + k % 2];
      if (r >= boosted) continue;
      const uint32_t codes = q[i][k / 2] >> 16 * (k % 2);
      uint8_t* tokens = high + r * 128 + F::row(i);
      tokens[0] = codes >> 2 & 3;
      tokens[8] = codes >> 10 & 3;
    }
  }
}

}  // namespace ebb
