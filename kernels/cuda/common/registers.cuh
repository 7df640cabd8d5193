// Registers that pass from some warps of a CTA to others (sm_90a; elsewhere warps keep what they
// have).
#pragma once

namespace ebb {

// Registers that each thread of this warpgroup, four warps from a multiple of four on, may use from
// here on; to grow waits until there are as many. All warps of the warpgroup must get here.
template <int Registers>
__device__ __forceinline__ void registers_grow() {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(Registers));
#endif
}
template <int Registers>
__device__ __forceinline__ void registers_shrink() {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(Registers));
#endif
}

}  // namespace ebb
