// The instructions of common/wgmma.cuh, by their definition in the PTX manual. Each warp computes
// its own 16 rows, at the instruction or, from launch to launch, only when the group is waited for:
// what is overwritten too early then shows.
#pragma once
#include "ptx.h"

namespace ebb {

inline uint64_t wgmma_matrix(uint32_t address, uint32_t leading, uint32_t stride) {
  return uint64_t{1} << 62 | static_cast<uint64_t>(stride >> 4) << 32 |
         static_cast<uint64_t>(leading >> 4) << 16 | (address & 0x3ffff) >> 4;
}
inline void wgmma_fence() {}
inline void wgmma_commit() { emulator::matrix_commit(); }
template <int Pending>
void wgmma_wait() {
  emulator::matrix_wait(Pending);
}
template <int N>
void wgmma_pin(float (&)[N]) {}

// The value at `address` once the swizzle has been undone.
inline float swizzled_value(uint32_t address) {
  uint16_t bits;
  memcpy(&bits, emulator::shared_at(address ^ (address >> 7 & 7) << 4, 2), 2);
  return bf16_value(bits);
}
// Element (row, k) of a K-major matrix, and (k, column) of an N-major one.
inline float k_major(uint64_t matrix, uint32_t row, uint32_t k) {
  const uint32_t start = (matrix & 0x3fff) << 4, stride = (matrix >> 32 & 0x3fff) << 4;
  return swizzled_value(start + row / 8 * stride + row % 8 * 128 + k * 2);
}
inline float n_major(uint64_t matrix, uint32_t k, uint32_t column) {
  const uint32_t start = (matrix & 0x3fff) << 4, leading = (matrix >> 16 & 0x3fff) << 4,
                 stride = (matrix >> 32 & 0x3fff) << 4;
  return swizzled_value(start + column / 64 * leading + k / 8 * stride + k % 8 * 128 +
                        column % 64 * 2);
}

struct MatrixLane {
  float* d;
  const uint32_t* a;  // four registers, or null: in shared memory
  uint64_t a_matrix, b_matrix;
  bool accumulate, b_n_major;
};

template <int N>
void multiply(const MatrixLane (&lanes)[32], uint32_t warp) {
  static float a[16][16], b[16][N], d[16][N];
  const MatrixLane& first = lanes[0];
  for (int lane = 0; lane < 32; lane++) {
    for (int r = 0; r < 4; r++) {
      for (int e = 0; e < 2; e++) {
        const uint32_t row = lane / 4 + r % 2 * 8, k = lane % 4 * 2 + r / 2 * 8 + e;
        a[row][k] = first.a ? bf16_value(lanes[lane].a[r] >> 16 * e & 0xffff)
                            : k_major(first.a_matrix, warp % 4 * 16 + row, k);
      }
    }
  }
  for (uint32_t k = 0; k < 16; k++)
    for (uint32_t n = 0; n < N; n++)
      b[k][n] = first.b_n_major ? n_major(first.b_matrix, k, n) : k_major(first.b_matrix, n, k);
  for (int row = 0; row < 16; row++) {
    for (int n = 0; n < N; n++) d[row][n] = 0.f;
    for (int k = 0; k < 16; k++)
      for (int n = 0; n < N; n++) d[row][n] += a[row][k] * b[k][n];
  }
  for (int lane = 0; lane < 32; lane++) {
    for (int i = 0; i < N / 2; i++) {
      const float sum = d[lane / 4 + i % 4 / 2 * 8][i / 4 * 8 + lane % 4 * 2 + i % 2];
      lanes[lane].d[i] = first.accumulate ? lanes[lane].d[i] + sum : sum;
    }
  }
}

template <int N>
void wgmma(const char* operation, const MatrixLane& lane) {
  MatrixLane mine = lane;
  emulator::warp_wide(operation, &mine, [](void* const* all) {
    struct {
      MatrixLane lanes[32];
    } warp_lanes;
    for (int i = 0; i < 32; i++) warp_lanes.lanes[i] = *static_cast<MatrixLane*>(all[i]);
    const uint32_t warp = threadIdx.x / 32;
    emulator::matrix_issue([=] { multiply<N>(warp_lanes.lanes, warp); });
  });
}
template <int R>
void wgmma_ss(float (&d)[R], uint64_t a, uint64_t b, bool accumulate) {
  wgmma<2 * R>("wgmma_ss", {d, nullptr, a, b, accumulate, false});
}
template <int R>
void wgmma_rs(float (&d)[R], const uint32_t (&a)[4], uint64_t b) {
  wgmma<2 * R>("wgmma_rs", {d, a, 0, b, true, true});
}
template <int R>
void wgmma_rs_k_major(float (&d)[R], const uint32_t (&a)[4], uint64_t b, bool accumulate) {
  wgmma<2 * R>("wgmma_rs_k_major", {d, a, 0, b, accumulate, false});
}

}  // namespace ebb
