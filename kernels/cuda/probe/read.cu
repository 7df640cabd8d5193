// Reads memory and does nothing with it, so that L2 holds lines that it need not write back
// (`ebb-bench attention --clean-l2`).
#include "../common/kernel.cuh"
#include "../common/ptx.cuh"

namespace ebb {

struct ReadParams {
  const uint4* from;
  uint64_t count;  // of 16 bytes
  // words read that have no zero bit, of the last word of each 16 bytes: a result, or the reads
  // would be left out
  uint32_t* all_ones;
};
static_assert(sizeof(ReadParams) == 24);

}  // namespace ebb

// Any grid.
EBB_KERNEL(probe_read, ebb::ReadParams, 256, 1) {
  uint32_t found = 0;
  for (uint64_t i = blockIdx.x * 256ull + threadIdx.x; i < p.count; i += gridDim.x * 256ull)
    found += (p.from[i].w == ~0u);
  if (found > 0) atomicAdd(p.all_ones, found);
}
