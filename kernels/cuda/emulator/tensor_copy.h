// The barriers and copies of common/tensor_copy.cuh, by their definition in the PTX manual.
#pragma once
#include "emulator.h"

namespace ebb {

// What src/cuda/emulated/tensor_map.rs writes: a bf16 tensor of `rank` dimensions, innermost first,
// and the box of a copy.
struct alignas(64) TensorMap {
  uint64_t magic;
  const uint8_t* base;
  uint64_t rank;
  uint64_t dims[4];
  uint64_t strides[3];  // bytes, of all dimensions but the first
  uint64_t box[4];
  uint64_t unused[2];
};
static_assert(sizeof(TensorMap) == 128);

inline void mbarrier_init(uint32_t barrier, uint32_t arrivals) {
  emulator::barrier_init(barrier, arrivals);
}
inline void mbarrier_init_fence() {}
inline void mbarrier_arrive(uint32_t barrier) { emulator::barrier_arrive(barrier, 0); }
inline void mbarrier_arrive_expect(uint32_t barrier, uint32_t bytes) {
  emulator::barrier_arrive(barrier, bytes);
}
inline bool mbarrier_try_wait(uint32_t barrier, uint32_t parity) {
  return emulator::barrier_passed(barrier, parity);
}
inline void mbarrier_wait(uint32_t barrier, uint32_t parity) {
  while (!emulator::barrier_passed(barrier, parity)) emulator::yield();
}
inline void fence_async_proxy() {}
inline void fence_async_proxy_global() {}
inline void prefetch_tensor_map(const TensorMap*) {}

inline void perform_tensor_copy(uint32_t dst, const TensorMap& map, const int64_t (&at)[4]) {
  const uint64_t rows = map.box[1], planes = map.box[2], volumes = map.box[3];
  for (uint64_t row = 0; row < rows * planes * volumes; row++) {
    const int64_t place[3] = {at[1] + static_cast<int64_t>(row % rows),
                              at[2] + static_cast<int64_t>(row / rows % planes),
                              at[3] + static_cast<int64_t>(row / rows / planes)};
    bool inside = true;
    const uint8_t* from = map.base;
    for (int d = 0; d < 3; d++) {
      inside &= place[d] >= 0 && place[d] < static_cast<int64_t>(map.dims[d + 1]);
      if (inside) from += place[d] * map.strides[d];
    }
    for (uint32_t i = 0; i < 64; i++) {
      const int64_t x = at[0] + i;
      uint16_t value = 0;
      if (inside && x >= 0 && x < static_cast<int64_t>(map.dims[0]))
        memcpy(&value, from + 2 * x, 2);
      memcpy(
          emulator::shared_at(
              dst + static_cast<uint32_t>(row) * 128 + ((i / 8) ^ (row % 8)) * 16 + i % 8 * 2, 2),
          &value, 2);
    }
  }
}

inline void issue_tensor_copy(uint32_t dst, const TensorMap* map, uint64_t rank,
                              const int64_t (&at)[4], uint32_t barrier) {
  if (map->magic != 0x70616d726f736e74 || map->rank != rank)
    emulator::fail("a tensor copy takes no tensor map of its rank");
  if (dst % 1024 != 0)
    emulator::fail("a swizzled tensor copy needs a shared address at a multiple of 1024");
  if (reinterpret_cast<uintptr_t>(map) % 64 != 0)
    emulator::fail("a tensor map is not aligned to 64 bytes");
  const uint32_t bytes = static_cast<uint32_t>(map->box[1] * map->box[2] * map->box[3]) * 128;
  emulator::tensor_copy_issue(barrier, bytes, [=, x = at[0], y = at[1], z = at[2], w = at[3]] {
    perform_tensor_copy(dst, *map, {x, y, z, w});
  });
}
inline void bulk_copy(uint32_t dst, const void* src, uint32_t bytes, uint32_t barrier,
                      uint64_t = 0) {
  if ((reinterpret_cast<uintptr_t>(src) | dst | bytes) % 16 != 0)
    emulator::fail("a bulk copy needs addresses and a length at multiples of 16");
  emulator::tensor_copy_issue(barrier, bytes, [=] {
    for (uint32_t i = 0; i < bytes; i += 16)
      memcpy(emulator::shared_at(dst + i, 16), static_cast<const uint8_t*>(src) + i, 16);
  });
}
inline void tensor_copy_3d(uint32_t dst, const TensorMap* map, int32_t x, int32_t y, int32_t z,
                           uint32_t barrier) {
  issue_tensor_copy(dst, map, 3, {x, y, z, 0}, barrier);
}
inline void tensor_copy_3d(uint32_t dst, const TensorMap* map, int32_t x, int32_t y, int32_t z,
                           uint32_t barrier, uint64_t) {
  issue_tensor_copy(dst, map, 3, {x, y, z, 0}, barrier);
}
inline void tensor_copy_4d(uint32_t dst, const TensorMap* map, int32_t x, int32_t y, int32_t z,
                           int32_t w, uint32_t barrier, uint64_t = 0) {
  issue_tensor_copy(dst, map, 4, {x, y, z, w}, barrier);
}

}  // namespace ebb
