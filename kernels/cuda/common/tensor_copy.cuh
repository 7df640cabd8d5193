// Copies by the copy engine and the barriers in shared memory on which they complete (sm_90; on
// older devices a trap).
//
// A barrier is 8 bytes of shared memory. A phase ends when all its arrivals have come and all bytes
// it was told to expect have landed; phases have parities 0, 1, 0, ... A fresh barrier is in phase
// 0, so a wait for parity 1 does not wait.
#pragma once
#include <cstdint>

#ifdef EBB_EMULATED
#include "../emulator/tensor_copy.h"
#else

namespace ebb {

// What cuTensorMapEncodeTiled writes. Lies in a kernel's parameters, which are declared
// __grid_constant__.
struct alignas(64) TensorMap {
  uint64_t opaque[16];
};
static_assert(sizeof(TensorMap) == 128);

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
#define EBB_SM90_ASM(...) __trap()
#else
#define EBB_SM90_ASM(...) asm volatile(__VA_ARGS__)
#endif

// Makes a barrier whose phases take `arrivals` arrivals. One thread; then `mbarrier_init_fence` and
// a CTA-wide barrier.
__device__ __forceinline__ void mbarrier_init(uint32_t barrier, uint32_t arrivals) {
  EBB_SM90_ASM("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

// Shows the barriers that this thread has made to the copy engine.
__device__ __forceinline__ void mbarrier_init_fence() {
  EBB_SM90_ASM("fence.mbarrier_init.release.cluster;" :: : "memory");
}

__device__ __forceinline__ void mbarrier_arrive(uint32_t barrier) {
  EBB_SM90_ASM("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// Arrives, and makes the phase wait for `bytes` more bytes to be copied.
__device__ __forceinline__ void mbarrier_arrive_expect(uint32_t barrier, uint32_t bytes) {
  EBB_SM90_ASM("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier),
               "r"(bytes) : "memory");
}

// Whether the phase of that parity has ended; waits for it a short time.
__device__ __forceinline__ bool mbarrier_try_wait(uint32_t barrier, uint32_t parity) {
  uint32_t done = 0;
  EBB_SM90_ASM(
      "{\n"
      ".reg .pred p;\n"
      "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
      "selp.u32 %0, 1, 0, p;\n"
      "}" : "=r"(done) : "r"(barrier),
      "r"(parity) : "memory");
  return done != 0;
}

// Waits for the end of the phase of that parity.
__device__ __forceinline__ void mbarrier_wait(uint32_t barrier, uint32_t parity) {
  while (!mbarrier_try_wait(barrier, parity)) {
  }
}

// Orders this thread's ordinary accesses to shared memory before those of the copy engine and of
// wgmma that follow a barrier.
__device__ __forceinline__ void fence_async_proxy() {
  EBB_SM90_ASM("fence.proxy.async.shared::cta;" :: : "memory");
}

// The same of global memory.
__device__ __forceinline__ void fence_async_proxy_global() {
  EBB_SM90_ASM("fence.proxy.async.global;" :: : "memory");
}

__device__ __forceinline__ void prefetch_tensor_map(const TensorMap* map) {
  EBB_SM90_ASM("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

// `bytes` bytes, a multiple of 16 at multiples of 16, as they are. Its bytes count on `barrier`.
__device__ __forceinline__ void bulk_copy(uint32_t dst, const void* src, uint32_t bytes,
                                          uint32_t barrier) {
  EBB_SM90_ASM(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(dst),
      "l"(src), "r"(bytes), "r"(barrier) : "memory");
}
__device__ __forceinline__ void bulk_copy(uint32_t dst, const void* src, uint32_t bytes,
                                          uint32_t barrier, uint64_t policy) {
  EBB_SM90_ASM(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], "
      "[%1], %2, [%3], %4;" ::"r"(dst),
      "l"(src), "r"(bytes), "r"(barrier), "l"(policy) : "memory");
}

// The box of `map` at element (x, y, z) to shared memory at a multiple of 1024 bytes, innermost
// first; 16-byte chunk c of each 128-byte row r of the box at c ^ (r % 8). Its bytes count on
// `barrier`; elements outside the tensor are zero.
__device__ __forceinline__ void tensor_copy_3d(uint32_t dst, const TensorMap* map, int32_t x,
                                               int32_t y, int32_t z, uint32_t barrier) {
  EBB_SM90_ASM(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, "
      "{%2, %3, %4}], [%5];" ::"r"(dst),
      "l"(map), "r"(x), "r"(y), "r"(z), "r"(barrier) : "memory");
}

// The same with an L2 policy.
__device__ __forceinline__ void tensor_copy_3d(uint32_t dst, const TensorMap* map, int32_t x,
                                               int32_t y, int32_t z, uint32_t barrier,
                                               uint64_t policy) {
  EBB_SM90_ASM(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_"
      "hint [%0], [%1, {%2, %3, %4}], [%5], %6;" ::"r"(dst),
      "l"(map), "r"(x), "r"(y), "r"(z), "r"(barrier), "l"(policy) : "memory");
}

// tensor_copy_3d of a map of four dimensions.
__device__ __forceinline__ void tensor_copy_4d(uint32_t dst, const TensorMap* map, int32_t x,
                                               int32_t y, int32_t z, int32_t w, uint32_t barrier,
                                               uint64_t policy) {
  EBB_SM90_ASM(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_"
      "hint [%0], [%1, {%2, %3, %4, %5}], [%6], %7;" ::"r"(dst),
      "l"(map), "r"(x), "r"(y), "r"(z), "r"(w), "r"(barrier), "l"(policy) : "memory");
}
__device__ __forceinline__ void tensor_copy_4d(uint32_t dst, const TensorMap* map, int32_t x,
                                               int32_t y, int32_t z, int32_t w, uint32_t barrier) {
  EBB_SM90_ASM(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, "
      "{%2, %3, %4, %5}], [%6];" ::"r"(dst),
      "l"(map), "r"(x), "r"(y), "r"(z), "r"(w), "r"(barrier) : "memory");
}

}  // namespace ebb
#endif
