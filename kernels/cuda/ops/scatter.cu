// Changes of the block tables, which stay on the device from step to step.
#include "../common/kernel.cuh"

#include <cstdint>

namespace ebb {

struct ScatterParams {
  const uint2* changes;  // [count]: which word, its new value; no word twice
  uint32_t* words;
  uint32_t count;
  uint32_t reserved;
};
static_assert(sizeof(ScatterParams) == 24);

}  // namespace ebb

// Grid: count / 256, rounded up. What follows must be enqueued behind a copy, which waits until
// this is done: kernels read tables before they wait for the previous one.
EBB_KERNEL(scatter, ebb::ScatterParams, 256, 1) {
  const uint32_t i = blockIdx.x * 256 + threadIdx.x;
  if (i < p.count) p.words[p.changes[i].x] = p.changes[i].y;
}
