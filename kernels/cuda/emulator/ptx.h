// The instructions of common/ptx.cuh, by their definition in the PTX manual.
#pragma once
#include "emulator.h"

namespace ebb {

struct bf16 {
  uint16_t bits;
};

inline uint16_t round_bf16(float v) {
  uint32_t u = __float_as_uint(v);
  if ((u & 0x7fffffff) > 0x7f800000) return 0x7fff;
  return static_cast<uint16_t>((u + 0x7fff + (u >> 16 & 1)) >> 16);
}
inline float bf16_value(uint32_t bits) { return __uint_as_float(bits << 16); }

template <class Better>
uint32_t better_bf16x2(uint32_t a, uint32_t b, Better better) {
  auto one = [&](uint32_t a, uint32_t b) -> uint32_t {
    const float x = bf16_value(a), y = bf16_value(b);
    return isnan(x) || isnan(y) ? 0x7fff : better(x, y) ? a : b;
  };
  return one(a & 0xffff, b & 0xffff) | one(a >> 16, b >> 16) << 16;
}
inline uint32_t min_bf16x2(uint32_t a, uint32_t b) {
  return better_bf16x2(a, b, [](float x, float y) { return x < y; });
}
inline uint32_t max_bf16x2(uint32_t a, uint32_t b) {
  return better_bf16x2(a, b, [](float x, float y) { return x > y; });
}

inline uint32_t smem_address(const void* p) { return emulator::shared_address(p); }
inline uint32_t computed_here(uint32_t v) { return v; }
template <uint32_t MASK>
inline uint32_t merge_bits(uint32_t a, uint32_t b) {
  return (a & MASK) | (b & ~MASK);
}
inline uint32_t grid_size_here() { return gridDim.x; }
inline uint64_t policy_evict_first() { return 0; }
constexpr uint64_t kEvictFirst = 0;
template <class T>
T look_up(const T* p) {
  return *p;
}
inline void prefetch_line(const void*) {}
inline void cp_async16(uint32_t dst, const void* src, uint64_t = 0) {
  emulator::copy_issue(dst, src, 16);
}
inline void cp_async16_zfill(uint32_t dst, const void* src, uint32_t bytes, uint64_t = 0) {
  emulator::copy_issue(dst, src, bytes);
}
inline uint4 load_streamed(const uint4* p, uint64_t) { return *p; }
inline void cp_async_commit() { emulator::copy_commit(); }
template <int Pending>
void cp_async_wait() {
  emulator::copy_wait(Pending);
}

template <bool Transposed>
void load_matrix(uint32_t (&r)[4], uint32_t address) {
  struct Argument {
    uint32_t address;
    uint32_t* r;
  } mine{address, r};
  emulator::warp_wide(Transposed ? "ldmatrix.trans" : "ldmatrix", &mine, [](void* const* all) {
    for (int j = 0; j < 4; j++) {
      uint16_t m[8][8];
      for (int row = 0; row < 8; row++)
        memcpy(m[row], emulator::shared_at(static_cast<Argument*>(all[8 * j + row])->address, 16),
               16);
      for (int lane = 0; lane < 32; lane++) {
        const int g = lane / 4, t = lane % 4;
        const uint32_t lo = Transposed ? m[2 * t][g] : m[g][2 * t],
                       hi = Transposed ? m[2 * t + 1][g] : m[g][2 * t + 1];
        static_cast<Argument*>(all[lane])->r[j] = lo | hi << 16;
      }
    }
  });
}
inline void ldmatrix_x4(uint32_t (&r)[4], uint32_t address) { load_matrix<false>(r, address); }
inline void ldmatrix_x4_trans(uint32_t (&r)[4], uint32_t address) { load_matrix<true>(r, address); }

inline uint32_t movmatrix_trans(uint32_t a) {
  uint32_t mine = a;
  emulator::warp_wide("movmatrix", &mine, [](void* const* all) {
    uint32_t m[8][8], out[32];
    for (int lane = 0; lane < 32; lane++) {
      const uint32_t v = *static_cast<uint32_t*>(all[lane]);
      m[lane / 4][lane % 4 * 2] = v & 0xffff;
      m[lane / 4][lane % 4 * 2 + 1] = v >> 16;
    }
    for (int lane = 0; lane < 32; lane++)
      out[lane] = m[lane % 4 * 2][lane / 4] | m[lane % 4 * 2 + 1][lane / 4] << 16;
    for (int lane = 0; lane < 32; lane++) *static_cast<uint32_t*>(all[lane]) = out[lane];
  });
  return mine;
}

inline float f16_value(uint32_t bits) {
  const uint32_t exponent = bits >> 10 & 31, fraction = bits & 1023;
  const float sign = bits & 0x8000 ? -1.f : 1.f;
  if (exponent == 31) return fraction ? NAN : sign * INFINITY;
  return sign * (exponent == 0 ? ldexpf(static_cast<float>(fraction), -24)
                               : ldexpf(static_cast<float>(1024 + fraction),
                                        static_cast<int>(exponent) - 25));
}
// To nearest, ties to even; the value is exact in double.
inline uint16_t round_f16(double v) {
  const uint16_t sign = std::signbit(v) ? 0x8000 : 0;
  if (v != v) return 0x7fff;
  v = fabs(v);
  if (v >= 65520.0) return sign | 0x7c00;
  if (v == 0.0) return sign;
  int exponent;
  frexp(v, &exponent);  // v = f 2^exponent, f in [0.5, 1)
  const int unit = exponent - 11 < -24 ? -24 : exponent - 11;
  const double steps = nearbyint(ldexp(v, -unit));
  if (unit == -24) return sign | static_cast<uint16_t>(steps);
  // Of 1024 .. 2048 steps; the carry of 2048 goes into the exponent.
  return sign | static_cast<uint16_t>(((unit + 24) << 10) + static_cast<int>(steps));
}
template <class Op>
uint32_t each_f16(uint32_t a, uint32_t b, uint32_t c, Op op) {
  auto one = [&](int s) -> uint32_t {
    return round_f16(op(double(f16_value(a >> s & 0xffff)), double(f16_value(b >> s & 0xffff)),
                        double(f16_value(c >> s & 0xffff))));
  };
  return one(0) | one(16) << 16;
}
inline uint32_t mul_f16x2(uint32_t a, uint32_t b) {
  return each_f16(a, b, 0, [](double x, double y, double) { return x * y; });
}
inline uint32_t fma_f16x2(uint32_t a, uint32_t b, uint32_t c) {
  return each_f16(a, b, c, [](double x, double y, double z) { return x * y + z; });
}
// E4M3: to nearest, ties to even, at most 448.
inline uint32_t round_e4m3(float v) {
  const uint32_t sign = std::signbit(v) ? 0x80 : 0;
  if (v != v) return sign | 0x7f;
  const float magnitude = fabsf(v);
  if (magnitude == 0.f) return sign;
  if (magnitude >= 448.f) return sign | 0x7e;
  int exponent;
  frexp(magnitude, &exponent);
  if (exponent < -5) exponent = -5;  // eighths of 2^-6 at least
  const int eighths = static_cast<int>(nearbyintf(ldexpf(magnitude, 4 - exponent)));
  return sign | static_cast<uint32_t>(((exponent + 5) << 3) + eighths);
}
inline uint32_t pack_e4m3(float a, float b, float c, float d) {
  return round_e4m3(a) | round_e4m3(b) << 8 | round_e4m3(c) << 16 | round_e4m3(d) << 24;
}

// Sums of products are rounded to float with the last bit telling of what is lost, then to bf16.
inline uint32_t fma_bf16x2(uint32_t a, uint32_t b, uint32_t c) {
  auto one = [&](int s) -> uint32_t {
    auto value = [&](uint32_t pair) { return double(bf16_value(pair >> s & 0xffff)); };
    const double sum = value(a) * value(b) + value(c);
    float rounded = static_cast<float>(sum);
    if (static_cast<double>(rounded) != sum && std::isfinite(rounded)) {
      if (fabs(static_cast<double>(rounded)) > fabs(sum)) rounded = nextafterf(rounded, 0.f);
      rounded = __uint_as_float(__float_as_uint(rounded) | 1);
    }
    return round_bf16(rounded);
  };
  return one(0) | one(16) << 16;
}
inline uint32_t max_abs_f16x2(uint32_t a, uint32_t b) {
  return each_f16(a, b, 0, [](double x, double y, double) { return fmax(x, fabs(y)); });
}

template <float (*Value)(uint32_t)>
void multiply_fragments(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  struct Argument {
    float* c;
    const uint32_t* a;
    uint32_t b[2];
  } mine{c, a, {b0, b1}};
  emulator::warp_wide("mma", &mine, [](void* const* all) {
    float a[16][16], b[8][16];  // rows of A, columns of B
    for (int lane = 0; lane < 32; lane++) {
      const Argument& l = *static_cast<Argument*>(all[lane]);
      const int g = lane / 4, t = lane % 4;
      for (int e = 0; e < 2; e++) {
        for (int r = 0; r < 4; r++)
          a[g + r % 2 * 8][2 * t + r / 2 * 8 + e] = Value(l.a[r] >> 16 * e & 0xffff);
        for (int r = 0; r < 2; r++) b[g][2 * t + r * 8 + e] = Value(l.b[r] >> 16 * e & 0xffff);
      }
    }
    for (int lane = 0; lane < 32; lane++) {
      float* c = static_cast<Argument*>(all[lane])->c;
      for (int i = 0; i < 4; i++) {
        const float *row = a[lane / 4 + i / 2 * 8], *column = b[lane % 4 * 2 + i % 2];
        float sum = 0.f;
        for (int k = 0; k < 16; k++) sum += row[k] * column[k];
        c[i] += sum;
      }
    }
  });
}

inline void mma_bf16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  multiply_fragments<bf16_value>(c, a, b0, b1);
}
inline void mma_f16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  multiply_fragments<f16_value>(c, a, b0, b1);
}

template <class Factor>
void multiply_bytes(int (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  struct Argument {
    int* c;
    const uint32_t* a;
    uint32_t b[2];
  } mine{c, a, {b0, b1}};
  emulator::warp_wide("mma", &mine, [](void* const* all) {
    int a[16][32], b[8][32];  // rows of A, columns of B
    for (int lane = 0; lane < 32; lane++) {
      const Argument& l = *static_cast<Argument*>(all[lane]);
      const int g = lane / 4, t = lane % 4;
      for (int e = 0; e < 4; e++) {
        for (int r = 0; r < 4; r++)
          a[g + r % 2 * 8][4 * t + r / 2 * 16 + e] = l.a[r] >> 8 * e & 0xff;
        for (int r = 0; r < 2; r++)
          b[g][4 * t + r * 16 + e] = static_cast<Factor>(l.b[r] >> 8 * e & 0xff);
      }
    }
    for (int lane = 0; lane < 32; lane++) {
      int* c = static_cast<Argument*>(all[lane])->c;
      for (int i = 0; i < 4; i++) {
        const int *row = a[lane / 4 + i / 2 * 8], *column = b[lane % 4 * 2 + i % 2];
        for (int k = 0; k < 32; k++) c[i] += row[k] * column[k];
      }
    }
  });
}
inline void mma_u8s8(int (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  multiply_bytes<int8_t>(c, a, b0, b1);
}
inline void mma_u8u8(int (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  multiply_bytes<uint8_t>(c, a, b0, b1);
}

inline uint32_t load_turn(uint32_t counter) { return emulator::turn_load(counter); }
inline void wait_for_more(uint32_t counter, uint32_t value) {
  while (static_cast<int32_t>(load_turn(counter) - value) <= 0) emulator::yield();
}
inline void wait_for_value(uint32_t counter, uint32_t value) {
  while (load_turn(counter) != value) emulator::yield();
}
inline void wait_for_room(uint32_t counter, uint32_t value, uint32_t most) {
  while (static_cast<int32_t>(value - load_turn(counter)) >= static_cast<int32_t>(most))
    emulator::yield();
}
inline uint32_t add_turn(uint32_t counter, uint32_t value) {
  return emulator::turn_add(counter, value);
}
inline uint32_t claim_turn(uint32_t counter, uint32_t end) {
  const uint32_t now = load_turn(counter);
  return now < end ? add_turn(counter, 1) : now;
}
inline void set_turn(uint32_t counter, uint32_t value) { emulator::turn_set(counter, value); }

inline void named_barrier_sync(uint32_t id, uint32_t threads) {
  emulator::named_barrier(id, threads, true);
}
inline void named_barrier_arrive(uint32_t id, uint32_t threads) {
  emulator::named_barrier(id, threads, false);
}
EBB_ATOMIC inline float4 load_relaxed(const float4* p) { return *p; }
EBB_ATOMIC inline void store_relaxed(float4* p, float4 v) { *p = v; }
inline void wait_for_other_ctas() {
  emulator::fail("waits for a CTA that comes after it, or for one that leaves nothing");
}
inline float ex2(float x) { return exp2f(x); }
inline float reciprocal(float x) { return 1.f / x; }
inline float2 cos_sin(float x) { return make_float2(cosf(x), sinf(x)); }
inline uint32_t pack_bf16(float lo, float hi) {
  return round_bf16(lo) | static_cast<uint32_t>(round_bf16(hi)) << 16;
}
inline float2 unpack_f16(uint32_t v) {
  return make_float2(f16_value(v & 0xffff), f16_value(v >> 16));
}
inline uint32_t pack_f16(float lo, float hi) {
  return round_f16(lo) | static_cast<uint32_t>(round_f16(hi)) << 16;
}

}  // namespace ebb

inline float __bfloat162float(ebb::bf16 v) { return ebb::bf16_value(v.bits); }
inline ebb::bf16 __float2bfloat16(float v) { return {ebb::round_bf16(v)}; }
