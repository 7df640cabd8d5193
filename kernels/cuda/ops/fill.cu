// Fills memory with random bf16 values, for models without files and for tests.
#include "../common/kernel.cuh"
#include "../common/ptx.cuh"

namespace ebb {

struct FillParams {
  bf16* out;
  uint64_t count;
  uint64_t seed;
  float amplitude;  // uniform in -amplitude .. amplitude
  float offset;     // added to each
};
static_assert(sizeof(FillParams) == 32);

}  // namespace ebb

// Any grid. Value i depends on (seed, i) alone: SplitMix64 of their sum, its high 24 bits.
EBB_KERNEL(fill_random, ebb::FillParams, 256, 1) {
  for (uint64_t i = blockIdx.x * 256ull + threadIdx.x; i < p.count; i += gridDim.x * 256ull) {
    uint64_t z = p.seed + (i + 1) * 0x9e3779b97f4a7c15ull;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    z ^= z >> 31;
    p.out[i] = __float2bfloat16(
        (static_cast<float>(z >> 40) * (2.f / 16777216.f) - 1.f) * p.amplitude + p.offset);
  }
}
