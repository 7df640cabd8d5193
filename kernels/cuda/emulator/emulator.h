// Runs kernels on the CPU, a CTA at a time, every thread a fiber of its own: for tests on machines
// without a GPU.
//
// What it is for: indices, masks, fragment layouts, ring and counter logic, barriers. Threads are
// interleaved at random at every warp-wide or CTA-wide operation; shared memory starts as NaN and
// every shared address is checked; asynchronous copies land, from launch to launch, as early or as
// late as the program allows, those of the copy engine also at random; the CTAs run, from launch to
// launch, from the first to the last or the other way, unless they wait for those before them. What
// it is not: it knows no time, no weak memory order between CTAs, no bank conflicts. Misuse ends
// the process with a sentence.
#pragma once
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>

#define __device__
#define __forceinline__ inline
#define __noinline__
// CTAs run one after the other; all in one place for races.cpp
#define __shared__ static __attribute__((section("ebb_shared")))
#define __constant__ const
// Atomic operations do not race with each other.
#define EBB_ATOMIC __attribute__((no_sanitize("thread"))) __attribute__((noinline))

using std::isnan;

struct uint2 {
  uint32_t x, y;
};
struct alignas(16) uint4 {
  uint32_t x, y, z, w;
};
struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
inline uint2 make_uint2(uint32_t x, uint32_t y) { return {x, y}; }
inline uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w) { return {x, y, z, w}; }
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

struct EmulatedIndex {
  uint32_t x, y, z;
};
extern EmulatedIndex threadIdx, blockIdx, blockDim, gridDim;

namespace ebb::emulator {

struct Kernel {
  const char* name;
  size_t param_bytes;
  uint32_t threads;
  bool phased;  // CTAs wait for others
  void (*body)(const void* params);
  const Kernel* next;
  Kernel(const char* name, size_t param_bytes, uint32_t threads, bool phased,
         void (*body)(const void*));
};

// Of a phased kernel, all CTAs of which run phase 0 before the first runs phase 1.
int phase();
uint8_t* dynamic_shared();
// Address in dynamic shared memory of `bytes` accessible bytes at a multiple of `bytes`; ends the
// process if it is not one.
uint8_t* shared_at(uint32_t address, uint32_t bytes);
uint32_t shared_address(const void* p);
[[noreturn]] void fail(const char* what);

// The thread that runs.
uint32_t current_thread();

// Counters in shared memory, which order what threads do (common/ptx.cuh).
uint32_t turn_load(uint32_t address);
uint32_t turn_add(uint32_t address, uint32_t value);
void turn_set(uint32_t address, uint32_t value);

void sync_threads();
// Waits until all 32 lanes have called it with the same `operation`, then runs `perform` once over
// all lanes' arguments.
void warp_wide(const char* operation, void* argument, void (*perform)(void* const* arguments));

// This thread's asynchronous copies.
void copy_issue(uint32_t dst, const void* src, uint32_t bytes);
void copy_commit();
void copy_wait(uint32_t pending);

// Barriers in shared memory: a phase ends when its arrivals have come and the bytes it expects have
// landed.
void barrier_init(uint32_t address, uint32_t arrivals);
void barrier_arrive(uint32_t address, uint32_t expected_bytes);
bool barrier_passed(uint32_t address, uint32_t parity);
// Barrier `id` of `threads` threads: arrives, and waits if `wait`.
void named_barrier(uint32_t id, uint32_t threads, bool wait);
// Matrix products of this warp that run on their own, in groups; issued inside a warp-wide
// operation, the others warp-wide.
void matrix_issue(std::function<void()> perform);
void matrix_commit();
void matrix_wait(uint32_t pending);
// Lets other threads run.
void yield();
// A copy of the copy engine, which belongs to no thread: at some time runs `perform` and counts its
// bytes on the barrier.
void tensor_copy_issue(uint32_t barrier, uint32_t bytes, std::function<void()> perform);

template <class T>
T exchange(const char* operation, T value, uint32_t from) {
  struct Argument {
    T value;
    uint32_t from;
    T result;
  } mine{value, from, value};
  warp_wide(operation, &mine, [](void* const* all) {
    for (int lane = 0; lane < 32; lane++) {
      Argument& a = *static_cast<Argument*>(all[lane]);
      a.result = static_cast<Argument*>(all[a.from % 32])->value;
    }
  });
  return mine.result;
}

}  // namespace ebb::emulator

inline void __syncthreads() { ebb::emulator::sync_threads(); }
inline void __syncwarp() {
  ebb::emulator::warp_wide("__syncwarp", nullptr, [](void* const*) {});
}
inline void __threadfence() {}
template <class T>
T __shfl_sync(uint32_t, T v, uint32_t lane) {
  return ebb::emulator::exchange("__shfl_sync", v, lane);
}
template <class T>
T __shfl_xor_sync(uint32_t, T v, uint32_t mask) {
  return ebb::emulator::exchange("__shfl_xor_sync", v, threadIdx.x % 32 ^ mask);
}
template <class T>
T __shfl_up_sync(uint32_t, T v, uint32_t delta) {
  return ebb::emulator::exchange(
      "__shfl_up_sync", v, threadIdx.x % 32 >= delta ? threadIdx.x % 32 - delta : threadIdx.x % 32);
}
inline int __popc(uint32_t x) { return __builtin_popcount(x); }
inline uint32_t __dp4a(uint32_t a, uint32_t b, uint32_t c) {
  for (int k = 0; k < 32; k += 8) c += (a >> k & 0xff) * (b >> k & 0xff);
  return c;
}
inline uint32_t __funnelshift_l(uint32_t low, uint32_t high, uint32_t shift) {
  shift %= 32;
  return shift == 0 ? high : high << shift | low >> (32 - shift);
}
inline uint32_t __byte_perm(uint32_t x, uint32_t y, uint32_t selector) {
  const uint64_t bytes = static_cast<uint64_t>(y) << 32 | x;
  uint32_t result = 0;
  for (int i = 0; i < 4; i++)
    result |= static_cast<uint32_t>(bytes >> 8 * (selector >> 4 * i & 7) & 0xff) << 8 * i;
  return result;
}
inline uint32_t __reduce_add_sync(uint32_t, uint32_t v) {
  ebb::emulator::warp_wide("__reduce_add_sync", &v, [](void* const* all) {
    uint32_t sum = 0;
    for (int lane = 0; lane < 32; lane++) sum += *static_cast<uint32_t*>(all[lane]);
    for (int lane = 0; lane < 32; lane++) *static_cast<uint32_t*>(all[lane]) = sum;
  });
  return v;
}
inline uint32_t __reduce_max_sync(uint32_t, uint32_t v) {
  ebb::emulator::warp_wide("__reduce_max_sync", &v, [](void* const* all) {
    uint32_t most = 0;
    for (int lane = 0; lane < 32; lane++)
      most = *static_cast<uint32_t*>(all[lane]) > most ? *static_cast<uint32_t*>(all[lane]) : most;
    for (int lane = 0; lane < 32; lane++) *static_cast<uint32_t*>(all[lane]) = most;
  });
  return v;
}
inline uint32_t __reduce_min_sync(uint32_t mask, uint32_t v) {
  return ~__reduce_max_sync(mask, ~v);
}
inline bool __any_sync(uint32_t, bool v) {
  bool mine = v;
  ebb::emulator::warp_wide("__any_sync", &mine, [](void* const* all) {
    bool any = false;
    for (int lane = 0; lane < 32; lane++) any |= *static_cast<bool*>(all[lane]);
    for (int lane = 0; lane < 32; lane++) *static_cast<bool*>(all[lane]) = any;
  });
  return mine;
}

inline uint32_t __ballot_sync(uint32_t, bool v) {
  return __reduce_add_sync(~0u, v ? 1u << threadIdx.x % 32 : 0u);
}

template <class T>
T __ldg(const T* p) {
  return *p;
}
template <class T>
T __ldcg(const T* p) {
  return *p;
}
template <class T>
void __stcg(T* p, T v) {
  *p = v;
}
EBB_ATOMIC inline uint32_t atomicAdd(uint32_t* p, uint32_t v) {
  uint32_t old = *p;
  *p += v;
  return old;
}
EBB_ATOMIC inline uint32_t atomicOr(uint32_t* p, uint32_t v) {
  uint32_t old = *p;
  *p |= v;
  return old;
}
template <class T>
EBB_ATOMIC T atomicMin(T* p, T v) {
  T old = *p;
  *p = v < old ? v : old;
  return old;
}
EBB_ATOMIC inline uint32_t atomicInc(uint32_t* p, uint32_t most) {
  uint32_t old = *p;
  *p = old >= most ? 0 : old + 1;
  return old;
}

inline void __nanosleep(uint32_t) { ebb::emulator::yield(); }
inline int __ffs(uint32_t v) { return __builtin_ffs(static_cast<int>(v)); }
inline float __uint_as_float(uint32_t v) {
  float f;
  memcpy(&f, &v, 4);
  return f;
}
inline uint32_t __float_as_uint(float v) {
  uint32_t u;
  memcpy(&u, &v, 4);
  return u;
}
// Rounded on their own; the build forbids the compiler to fuse them.
inline float __fadd_rn(float a, float b) { return a + b; }
// Of summands whose sum is exact in double precision.
inline float __fadd_rz(float a, float b) {
  const double exact = static_cast<double>(a) + b;
  const float nearest = static_cast<float>(exact);
  return std::fabs(static_cast<double>(nearest)) > std::fabs(exact) ? std::nextafter(nearest, 0.f)
                                                                    : nearest;
}
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fsqrt_rn(float a) { return sqrtf(a); }
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
  return static_cast<unsigned long long>(static_cast<unsigned __int128>(a) * b >> 64);
}
inline float __expf(float x) { return expf(x); }
inline float rsqrtf(float x) { return 1.f / sqrtf(x); }
inline uint32_t min(uint32_t a, uint32_t b) { return a < b ? a : b; }
inline uint32_t max(uint32_t a, uint32_t b) { return a > b ? a : b; }
