// out = activation(gate) * up.
#include "../common/activation.cuh"
#include "../common/eight.cuh"
#include "../common/kernel.cuh"

namespace ebb {

struct GateParams {
  const bf16* gate_up;    // [rows][2 * intermediate]: gate, then up
  bf16* out;              // [rows][intermediate]
  uint32_t intermediate;  // a multiple of 8
  uint32_t activation;    // of common/activation.cuh
};
static_assert(sizeof(GateParams) == 24);

}  // namespace ebb

// Grid: (rows, intermediate / 2048).
EBB_KERNEL(gate, ebb::GateParams, 256, 1) {
  const uint32_t i = (blockIdx.y * 256 + threadIdx.x) * 8;
  if (i >= p.intermediate) return;
  const ebb::bf16* row = p.gate_up + static_cast<uint64_t>(blockIdx.x) * 2 * p.intermediate;
  float g[8], u[8];
  ebb::load8(row + i, g);
  ebb::load8(row + p.intermediate + i, u);
  uint32_t out[4];
#pragma unroll
  for (int k = 0; k < 4; k++) {
    const float2 gate = make_float2(g[2 * k], g[2 * k + 1]),
                 up = make_float2(u[2 * k], u[2 * k + 1]);
    out[k] = ebb::gated_pair(p.activation, gate, up);
  }
  *reinterpret_cast<uint4*>(p.out + static_cast<uint64_t>(blockIdx.x) * p.intermediate + i) =
      make_uint4(out[0], out[1], out[2], out[3]);
}
