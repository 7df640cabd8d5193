// How a kernel is declared: one parameter struct, named p, by value. In the emulator the same
// declaration registers the body.
#pragma once

#ifdef EBB_EMULATED

#define EBB_EMULATED_KERNEL(NAME, PARAMS, THREADS, PHASED)                 \
  static void NAME##_body(const PARAMS& p);                                \
  static const ebb::emulator::Kernel NAME##_kernel(                        \
      #NAME, sizeof(PARAMS), THREADS, PHASED,                              \
      [](const void* p) { NAME##_body(*static_cast<const PARAMS*>(p)); }); \
  static void NAME##_body(const PARAMS& p)
#define EBB_KERNEL(NAME, PARAMS, THREADS, CTAS) EBB_EMULATED_KERNEL(NAME, PARAMS, THREADS, false)
#define EBB_KERNEL_EARLY EBB_KERNEL
#define EBB_KERNEL_OF_REGISTERS(NAME, PARAMS, THREADS, REGISTERS) \
  EBB_KERNEL(NAME, PARAMS, THREADS, 1)
#define EBB_KERNEL_PHASED(NAME, PARAMS, THREADS, CTAS) \
  EBB_EMULATED_KERNEL(NAME, PARAMS, THREADS, true)
#define EBB_DYNAMIC_SHARED(NAME) uint8_t* const NAME = ebb::emulator::dynamic_shared()

#else

// THREADS of a CTA, and CTAS that a multiprocessor should hold at once.
#define EBB_KERNEL_EARLY(NAME, PARAMS, THREADS, CTAS) \
  extern "C" __global__ void __launch_bounds__(THREADS, CTAS) NAME(const __grid_constant__ PARAMS p)
// The same, of as many registers a thread to begin with (registers.cuh), whatever they are enough
// for.
#define EBB_KERNEL_OF_REGISTERS(NAME, PARAMS, THREADS, REGISTERS) \
  extern "C" __global__ void __maxnreg__(REGISTERS) NAME(const __grid_constant__ PARAMS p)
#define EBB_KERNEL_PHASED EBB_KERNEL_EARLY
#define EBB_KERNEL(NAME, PARAMS, THREADS, CTAS)                        \
  static __device__ __forceinline__ void NAME##_body(const PARAMS& p); \
  EBB_KERNEL_EARLY(NAME, PARAMS, THREADS, CTAS) {                      \
    ebb::let_next_start();                                             \
    ebb::wait_for_previous();                                          \
    NAME##_body(p);                                                    \
  }                                                                    \
  static __device__ __forceinline__ void NAME##_body(const PARAMS& p)
#define EBB_DYNAMIC_SHARED(NAME) extern __shared__ __align__(1024) uint8_t NAME[]

#endif

namespace ebb {

// Programmatic dependent launch (sm_90): a kernel may start while the one before it in the stream
// still runs. Every CTA calls both, the second before it touches what an earlier kernel of the step
// writes or reads; EBB_KERNEL does so at the start, EBB_KERNEL_EARLY leaves it to the body, as does
// EBB_KERNEL_PHASED, whose CTAs may wait for others: before what is in_phase(1) for those of lower
// numbers, which begin no later, then for any. The emulator runs the first phase of all, then the
// second. As all do, "the previous kernel is done" includes all before it. What a step uploads
// (tables, work lists) and the weights may be read before the wait.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
__device__ __forceinline__ void let_next_start() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}
__device__ __forceinline__ void wait_for_previous() {
  asm volatile("griddepcontrol.wait;" ::: "memory");
}
#elif defined(EBB_EMULATED) || defined(__CUDA_ARCH__)
__device__ __forceinline__ void let_next_start() {}
__device__ __forceinline__ void wait_for_previous() {}
#else
__device__ void let_next_start();
__device__ void wait_for_previous();
#endif

#ifdef EBB_EMULATED
inline bool in_phase(int phase) { return emulator::phase() == phase; }
#else
__device__ __forceinline__ constexpr bool in_phase(int) { return true; }
#endif

}  // namespace ebb
