// Matrix products of a warpgroup (sm_90a): four consecutive warps, the first a multiple of four,
// multiply 64 rows at once and go on while the tensor cores work. Only for code inside
// EBB_HAS_WGMMA.
//
// d[4i + r] of lane (g, t) of warp w is row 16 w + g + 8 (r / 2), column 8 i + 2 t + r % 2: as in
// m16n8k16, and so is A in registers. d and a registers must not be touched between the instruction
// and the wait for its group.
#pragma once
#include <cstdint>

#ifdef EBB_EMULATED
#define EBB_HAS_WGMMA
#include "../emulator/wgmma.h"
#else

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define EBB_HAS_WGMMA

namespace ebb {

// A matrix in shared memory in rows of 128 bytes, swizzled by 128 bytes, eight rows being 1024
// bytes. K-major (a row is 64 values of k): `stride` bytes from eight rows to the next eight,
// `leading` unused; the next 16 values of k are at address + 32. Major in the other dimension (a
// row is 64 values of m or n): `stride` from eight values of k to the next eight, `leading` from 64
// values of m or n to the next 64.
__device__ __forceinline__ uint64_t wgmma_matrix(uint32_t address, uint32_t leading,
                                                 uint32_t stride) {
  return uint64_t{1} << 62 | static_cast<uint64_t>(stride >> 4) << 32 |
         static_cast<uint64_t>(leading >> 4) << 16 | (address & 0x3ffff) >> 4;
}

// Before the first product, and after ordinary code has written d or a.
__device__ __forceinline__ void wgmma_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// Waits until at most `Pending` groups are under way.
template <int Pending>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(Pending) : "memory");
}
// Keeps the compiler from moving reads and writes of d across this place.
template <int N>
__device__ __forceinline__ void wgmma_pin(float (&d)[N]) {
#pragma unroll
  for (int i = 0; i < N; i++) asm volatile("" : "+f"(d[i])::"memory");
}

// The first 4, 8, ... registers of an instruction by name, which are d; and d as operands.
#define EBB_NAMES_4 "%0, %1, %2, %3"
#define EBB_NAMES_8 EBB_NAMES_4 ", %4, %5, %6, %7"
#define EBB_NAMES_16 EBB_NAMES_8 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define EBB_NAMES_32 \
  EBB_NAMES_16       \
  ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define EBB_NAMES_64                                                                 \
  EBB_NAMES_32                                                                       \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47" \
  ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define EBB_FROM_4(I) "+f"(d[I]), "+f"(d[I + 1]), "+f"(d[I + 2]), "+f"(d[I + 3])
#define EBB_FROM_8(I) EBB_FROM_4(I), EBB_FROM_4(I + 4)
#define EBB_FROM_16(I) EBB_FROM_8(I), EBB_FROM_8(I + 8)
#define EBB_FROM_32(I) EBB_FROM_16(I), EBB_FROM_16(I + 16)
#define EBB_FROM_64(I) EBB_FROM_32(I), EBB_FROM_32(I + 32)
#define EBB_WGMMA(N) "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.bf16.bf16 {"

// d = a b or d += a b, [64 x N] over k = 16, N twice the length of d: a and b in shared memory,
// both K-major. A, B and P: the numbers of the operands behind d.
#define EBB_WGMMA_SS(LENGTH, N, A, B, P)                                                    \
  __device__ __forceinline__ void wgmma_ss(float (&d)[LENGTH], uint64_t a, uint64_t b,      \
                                           bool accumulate) {                               \
    asm volatile(                                                                           \
        "{\n"                                                                               \
        ".reg .pred p;\n"                                                                   \
        "setp.ne.b32 p, %" #P ", 0;\n" EBB_WGMMA(N) EBB_NAMES_##LENGTH "}, %" #A ", %" #B   \
                                                                       ", p, 1, 1, 0, 0;\n" \
                                                                       "}"                  \
        : EBB_FROM_##LENGTH(0)                                                              \
        : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)));                               \
  }
EBB_WGMMA_SS(4, 8, 4, 5, 6)
EBB_WGMMA_SS(8, 16, 8, 9, 10)
EBB_WGMMA_SS(16, 32, 16, 17, 18)
EBB_WGMMA_SS(32, 64, 32, 33, 34)
EBB_WGMMA_SS(64, 128, 64, 65, 66)

// d = a b or d += a b, [64 x N] over k = 16: a in registers, b in shared memory, K-major.
#define EBB_WGMMA_RS_K_MAJOR(LENGTH, N, A0, A1, A2, A3, B, P)                                     \
  __device__ __forceinline__ void wgmma_rs_k_major(float (&d)[LENGTH], const uint32_t (&a)[4],    \
                                                   uint64_t b, bool accumulate) {                 \
    asm volatile(                                                                                 \
        "{\n"                                                                                     \
        ".reg .pred p;\n"                                                                         \
        "setp.ne.b32 p, %" #P ", 0;\n" EBB_WGMMA(N) EBB_NAMES_##LENGTH                            \
        "}, {%" #A0 ", %" #A1 ", %" #A2 ", %" #A3 "}, %" #B                                       \
        ", p, 1, 1, 0;\n"                                                                         \
        "}"                                                                                       \
        : EBB_FROM_##LENGTH(0)                                                                    \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(accumulate))); \
  }
EBB_WGMMA_RS_K_MAJOR(4, 8, 4, 5, 6, 7, 8, 9)
EBB_WGMMA_RS_K_MAJOR(8, 16, 8, 9, 10, 11, 12, 13)
EBB_WGMMA_RS_K_MAJOR(16, 32, 16, 17, 18, 19, 20, 21)
EBB_WGMMA_RS_K_MAJOR(32, 64, 32, 33, 34, 35, 36, 37)
EBB_WGMMA_RS_K_MAJOR(64, 128, 64, 65, 66, 67, 68, 69)

// d += a b, [64 x N] over k = 16: a in registers, b in shared memory, N-major.
#define EBB_WGMMA_RS(LENGTH, N, A0, A1, A2, A3, B)                                         \
  __device__ __forceinline__ void wgmma_rs(float (&d)[LENGTH], const uint32_t (&a)[4],     \
                                           uint64_t b) {                                   \
    asm volatile(EBB_WGMMA(N) EBB_NAMES_##LENGTH "}, {%" #A0 ", %" #A1 ", %" #A2 ", %" #A3 \
                                                 "}, %" #B ", 1, 1, 1, 1;"                 \
                 : EBB_FROM_##LENGTH(0)                                                    \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                    \
  }
EBB_WGMMA_RS(32, 64, 32, 33, 34, 35, 36)
EBB_WGMMA_RS(64, 128, 64, 65, 66, 67, 68)

#undef EBB_WGMMA_RS
#undef EBB_WGMMA_RS_K_MAJOR
#undef EBB_WGMMA_SS
#undef EBB_WGMMA

}  // namespace ebb
#endif
#endif
