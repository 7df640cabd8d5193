// Thin wrappers of the PTX instructions the kernels use. Fragment layouts are those of the PTX
// manual: a lane is (g, t) = (lane / 4, lane % 4).
#pragma once
#include <cstdint>

#ifdef EBB_EMULATED
#include "../emulator/ptx.h"
#else
#include <cuda_bf16.h>

namespace ebb {

using bf16 = __nv_bfloat16;

__device__ __forceinline__ uint32_t smem_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

// The same value, of which the compiler does not know that it is: what is computed from it is
// computed where it is needed, not kept in registers from before a loop.
__device__ __forceinline__ uint32_t computed_here(uint32_t v) {
  asm volatile("" : "+r"(v));
  return v;
}

// The bits of a where a mask has ones, of b where it has zeros, by one instruction; written out,
// the compiler makes two of it.
template <uint32_t MASK>
__device__ __forceinline__ uint32_t merge_bits(uint32_t a, uint32_t b) {
  uint32_t v;
  asm("lop3.b32 %0, %1, %2, %3, 0xe2;" : "=r"(v) : "r"(a), "n"(MASK), "r"(b));
  return v;
}

// gridDim.x, read anew.
__device__ __forceinline__ uint32_t grid_size_here() {
  uint32_t n;
  asm volatile("mov.u32 %0, %%nctaid.x;" : "=r"(n));
  return n;
}

// L2 policy for bytes that are read once per step: they leave the cache first.
__device__ __forceinline__ uint64_t policy_evict_first() {
  uint64_t policy;
  asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

// The same as a constant, which needs no registers: what the instruction above gives.
constexpr uint64_t kEvictFirst = 0x12f0000000000000;

// Of tables that every layer of a step looks up, one entry after the other: they leave L2 last, or
// each layer would wait for memory anew. (The policy is what
// `createpolicy.fractional.L2::evict_last` gives.)
constexpr uint64_t kEvictLast = 0x14f0000000000000;
__device__ __forceinline__ uint32_t look_up(const uint32_t* p) {
  uint32_t v;
  asm volatile("ld.global.nc.L2::cache_hint.u32 %0, [%1], %2;" : "=r"(v) : "l"(p), "l"(kEvictLast));
  return v;
}
__device__ __forceinline__ uint2 look_up(const uint2* p) {
  uint2 v;
  asm volatile("ld.global.nc.L2::cache_hint.v2.u32 {%0, %1}, [%2], %3;"
               : "=r"(v.x), "=r"(v.y)
               : "l"(p), "l"(kEvictLast));
  return v;
}
__device__ __forceinline__ uint4 look_up(const uint4* p) {
  uint4 v;
  asm volatile("ld.global.nc.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], %5;"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(p), "l"(kEvictLast));
  return v;
}

// Has a line of such a table brought to L2.
__device__ __forceinline__ void prefetch_line(const void* p) {
  asm volatile("prefetch.global.L2::evict_last [%0];" ::"l"(p));
}

// 16 bytes from global to shared memory, past L1.
__device__ __forceinline__ void cp_async16(uint32_t dst, const void* src, uint64_t policy) {
  asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2;" ::"r"(dst), "l"(src),
               "l"(policy)
               : "memory");
}

__device__ __forceinline__ void cp_async16(uint32_t dst, const void* src) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(dst), "l"(src) : "memory");
}

// The same, but `bytes` (0 or 16) are read and the rest is zero.
__device__ __forceinline__ void cp_async16_zfill(uint32_t dst, const void* src, uint32_t bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(dst), "l"(src), "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void cp_async16_zfill(uint32_t dst, const void* src, uint32_t bytes,
                                                 uint64_t policy) {
  asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2, %3;" ::"r"(dst),
               "l"(src), "r"(bytes), "l"(policy)
               : "memory");
}

// 16 bytes that nobody reads again soon: past L1, and by the policy first to leave L2.
__device__ __forceinline__ uint4 load_streamed(const uint4* p, uint64_t policy) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], %5;"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(p), "l"(policy));
  return v;
}

__device__ __forceinline__ void cp_async_commit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}

// Waits until at most `Pending` of this thread's groups are outstanding.
template <int Pending>
__device__ __forceinline__ void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(Pending) : "memory");
}

// Four 8x8 matrices of 16-bit elements; lane 8j + r gives the address of row r of matrix j.
__device__ __forceinline__ void ldmatrix_x4(uint32_t (&r)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}

// The same, each matrix transposed.
__device__ __forceinline__ void ldmatrix_x4_trans(uint32_t (&r)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}

// Transposes an 8x8 matrix of 16-bit elements across the warp.
__device__ __forceinline__ uint32_t movmatrix_trans(uint32_t a) {
  uint32_t d;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(d) : "r"(a));
  return d;
}

// c[16x8] += a[16x16] * b[16x8], bf16 in, f32 out.
__device__ __forceinline__ void mma_bf16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                         uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// The same of fp16.
__device__ __forceinline__ void mma_f16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                        uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, "
      "%9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// c[16x8] += a[16x32] * b[32x8] of bytes, 32-bit integers out. A register of a or b has four bytes
// along k, from 4t on and in the second half from 16 + 4t. a is unsigned; b is signed, or unsigned.
__device__ __forceinline__ void mma_u8s8(int (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                         uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, "
      "%9}, {%0, %1, %2, %3};"
      : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
__device__ __forceinline__ void mma_u8u8(int (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                         uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k32.row.col.s32.u8.u8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, "
      "%9}, {%0, %1, %2, %3};"
      : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Pairs of fp16: products, and the greater of a and |b|.
__device__ __forceinline__ uint32_t mul_f16x2(uint32_t a, uint32_t b) {
  uint32_t d;
  asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
  return d;
}
// a b + c rounded once.
__device__ __forceinline__ uint32_t fma_f16x2(uint32_t a, uint32_t b, uint32_t c) {
  uint32_t d;
  asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
}
// The same of bf16; below the normal numbers too.
__device__ __forceinline__ uint32_t fma_bf16x2(uint32_t a, uint32_t b, uint32_t c) {
  uint32_t d;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
}
__device__ __forceinline__ uint32_t max_abs_f16x2(uint32_t a, uint32_t b) {
  uint32_t d;
  asm("{.reg .b32 x; abs.f16x2 x, %2; max.f16x2 %0, %1, x;}" : "=r"(d) : "r"(a), "r"(b));
  return d;
}

// Counters in shared memory that only grow. A lane that has waited sees what was written before the
// counter was set; one lane of a warp sets, after a warp-wide barrier.
//
// Waits until the counter is more than `value`; until it is it; until it is less than `most` below
// it.
__device__ __forceinline__ uint32_t load_turn(uint32_t counter) {
  uint32_t now;
  asm volatile("ld.acquire.cta.shared::cta.u32 %0, [%1];" : "=r"(now) : "r"(counter) : "memory");
  return now;
}
__device__ __forceinline__ void wait_for_more(uint32_t counter, uint32_t value) {
  while (static_cast<int32_t>(load_turn(counter) - value) <= 0) __nanosleep(20);
}
__device__ __forceinline__ void wait_for_value(uint32_t counter, uint32_t value) {
  while (load_turn(counter) != value) __nanosleep(20);
}
__device__ __forceinline__ void wait_for_room(uint32_t counter, uint32_t value, uint32_t most) {
  while (static_cast<int32_t>(value - load_turn(counter)) >= static_cast<int32_t>(most))
    __nanosleep(200);
}
// Adds; what it was. Orders as waiting and setting do.
__device__ __forceinline__ uint32_t add_turn(uint32_t counter, uint32_t value) {
  uint32_t old;
  asm volatile("atom.acq_rel.cta.shared::cta.add.u32 %0, [%1], %2;"
               : "=r"(old)
               : "r"(counter), "r"(value)
               : "memory");
  return old;
}
// Adds one unless that makes it more than `end`; what it was.
__device__ __forceinline__ uint32_t claim_turn(uint32_t counter, uint32_t end) {
  uint32_t now = load_turn(counter);
  while (now < end) {
    uint32_t old;
    asm volatile("atom.acq_rel.cta.shared::cta.cas.b32 %0, [%1], %2, %3;"
                 : "=r"(old)
                 : "r"(counter), "r"(now), "r"(now + 1)
                 : "memory");
    if (old == now) break;
    now = old;
  }
  return now;
}
__device__ __forceinline__ void set_turn(uint32_t counter, uint32_t value) {
  asm volatile("st.release.cta.shared::cta.u32 [%0], %1;" ::"r"(counter), "r"(value) : "memory");
}

// Barrier `id` (1 to 15) of `threads` threads: arrive and wait, or arrive only.
__device__ __forceinline__ void named_barrier_sync(uint32_t id, uint32_t threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
__device__ __forceinline__ void named_barrier_arrive(uint32_t id, uint32_t threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// 16 bytes that other CTAs read or write meanwhile: four accesses in no order, each of which sees
// all of a value or nothing.
__device__ __forceinline__ float4 load_relaxed(const float4* p) {
  float4 v;
  asm volatile("ld.relaxed.gpu.global.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "l"(p)
               : "memory");
  return v;
}
__device__ __forceinline__ void store_relaxed(float4* p, float4 v) {
  asm volatile("st.relaxed.gpu.global.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(p), "f"(v.x), "f"(v.y),
               "f"(v.z), "f"(v.w)
               : "memory");
}
// Between two looks at what another CTA is to write.
__device__ __forceinline__ void wait_for_other_ctas() {}

// 1 / x to about 2^-23; of infinity 0.
__device__ __forceinline__ float reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// 2^x; ex2(-inf) = 0.
__device__ __forceinline__ float ex2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Cosine and sine, within 2^-20 for angles from -2 pi to 2 pi.
__device__ __forceinline__ float2 cos_sin(float x) {
  float2 y;
  asm("cos.approx.ftz.f32 %0, %1;" : "=f"(y.x) : "f"(x));
  asm("sin.approx.ftz.f32 %0, %1;" : "=f"(y.y) : "f"(x));
  return y;
}

// The lesser and the greater of two pairs; NaN if either is.
__device__ __forceinline__ uint32_t min_bf16x2(uint32_t a, uint32_t b) {
  uint32_t d;
  asm("min.NaN.bf16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
  return d;
}
__device__ __forceinline__ uint32_t max_bf16x2(uint32_t a, uint32_t b) {
  uint32_t d;
  asm("max.NaN.bf16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
  return d;
}

// Two floats rounded to bf16, `lo` in the low half.
__device__ __forceinline__ uint32_t pack_bf16(float lo, float hi) {
  uint32_t d;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(hi), "f"(lo));
  return d;
}
// The same of fp16.
__device__ __forceinline__ uint32_t pack_f16(float lo, float hi) {
  uint32_t d;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(hi), "f"(lo));
  return d;
}

// Four floats rounded to E4M3, the first in the lowest byte; beyond 448 they are 448 (sm_89; on
// older devices a trap).
__device__ __forceinline__ uint32_t pack_e4m3(float a, float b, float c, float d) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 890
  __trap();
  return 0;
#else
  uint16_t low, high;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(low) : "f"(b), "f"(a));
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(high) : "f"(d), "f"(c));
  return low | static_cast<uint32_t>(high) << 16;
#endif
}

// The exact values of a pair of fp16.
__device__ __forceinline__ float2 unpack_f16(uint32_t v) {
  float2 f;
  asm("{.reg .f16 a, b; mov.b32 {a, b}, %2; cvt.f32.f16 %0, a; cvt.f32.f16 %1, b;}"
      : "=f"(f.x), "=f"(f.y)
      : "r"(v));
  return f;
}

}  // namespace ebb
#endif

namespace ebb {

// The exact values of a packed pair.
__device__ __forceinline__ float2 unpack_bf16(uint32_t v) {
  return make_float2(__uint_as_float(v << 16), __uint_as_float(v & 0xffff0000u));
}

}  // namespace ebb
