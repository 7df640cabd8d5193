// The gates of what attention puts out.
#include "../common/activation.cuh"
#include "../common/eight.cuh"
#include "../common/kernel.cuh"

namespace ebb {

struct OpenParams {
  bf16* attended;        // [rows][width], in place
  const bf16* gates;     // [rows][width / channels]
  uint64_t count;        // of values, a multiple of 8
  uint32_t channels;     // that a gate opens: 1, or a multiple of 8
  uint32_t is_softplus;  // gates are ln(1 + e^x), else sigmoids
};
static_assert(sizeof(OpenParams) == 32);

}  // namespace ebb

// Grid: count / 2048.
EBB_KERNEL(open_attended, ebb::OpenParams, 256, 1) {
  const uint64_t i = (static_cast<uint64_t>(blockIdx.x) * 256 + threadIdx.x) * 8;
  if (i >= p.count) return;
  float x[8], gate[8];
  ebb::load8(p.attended + i, x);
  if (p.channels == 1) {
    ebb::load8(p.gates + i, gate);
  } else {
    const float of_head = __bfloat162float(p.gates[i / p.channels]);
#pragma unroll
    for (int k = 0; k < 8; k++) gate[k] = of_head;
  }
#pragma unroll
  for (int k = 0; k < 8; k++) {
    if (p.is_softplus)
      x[k] *= ebb::softplus(gate[k]);
    else
      x[k] /= 1.f + __expf(-gate[k]);
  }
  ebb::store8(p.attended + i, x);
}
