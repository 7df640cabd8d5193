// What products of eight-bit floats read beside weights (Fp8Rows of packed.cuh): rows of x,
// quantised as they come.
#include "../common/kernel.cuh"
#include "../common/ptx.cuh"
#include "../common/reduce.cuh"

namespace ebb {

struct QuantiseFp8Params {
  const bf16* x;    // [rows][inputs]
  uint8_t* y;       // [rows][inputs], E4M3, permuted within sixteens as weights are
  float* scales;    // [rows]: x = y * scale
  uint32_t inputs;  // a multiple of 16
  uint32_t reserved;
};
static_assert(sizeof(QuantiseFp8Params) == 32);

constexpr int kFp8Threads = 256, kFp8Warps = kFp8Threads / 32;
constexpr float kFp8Most = 448.f;

// A CTA quantises a row, its greatest magnitude to 448.
__device__ __forceinline__ void quantise_row(const QuantiseFp8Params& p, float* shared) {
  const uint64_t first = static_cast<uint64_t>(blockIdx.x) * p.inputs;
  const uint4* const x = reinterpret_cast<const uint4*>(p.x + first);
  uint4* const y = reinterpret_cast<uint4*>(p.y + first);
  float most = 0.f;
  for (uint32_t i = threadIdx.x; i < p.inputs / 8; i += kFp8Threads) {
    const uint4 v = x[i];
    const uint32_t pairs[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int k = 0; k < 4; k++) {
      const float2 pair = unpack_bf16(pairs[k]);
      most = fmaxf(most, fmaxf(fabsf(pair.x), fabsf(pair.y)));
    }
  }
  most = cta_max<kFp8Warps>(most, shared);
  // Of a row so small that the inverse overflows, zeros would become NaN.
  const bool is_zero = most < 1e-35f;
  const float scale = is_zero ? 0.f : most / kFp8Most, inverse = is_zero ? 0.f : kFp8Most / most;
  if (threadIdx.x == 0) p.scales[blockIdx.x] = scale;
  for (uint32_t i = threadIdx.x; i < p.inputs / 16; i += kFp8Threads) {
    const uint4 low = x[2 * i], high = x[2 * i + 1];
    auto word = [&](uint32_t low, uint32_t high) {
      const float2 a = unpack_bf16(low), b = unpack_bf16(high);
      return pack_e4m3(a.x * inverse, b.x * inverse, a.y * inverse, b.y * inverse);
    };
    y[i] = make_uint4(word(low.x, high.x), word(low.y, high.y), word(low.z, high.z),
                      word(low.w, high.w));
  }
}

}  // namespace ebb

// Grid: rows.
EBB_KERNEL(quantise_fp8, ebb::QuantiseFp8Params, ebb::kFp8Threads, 4) {
  __shared__ float shared[ebb::kFp8Warps];
  ebb::quantise_row(p, shared);
}
