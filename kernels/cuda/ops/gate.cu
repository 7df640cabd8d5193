// out = activation(gate) * up.
#include "../common/kernel.cuh"
#include "../common/ptx.cuh"
#include "../common/activation.cuh"

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
  const uint4 g = *reinterpret_cast<const uint4*>(row + i),
              u = *reinterpret_cast<const uint4*>(row + p.intermediate + i);
  const uint32_t gw[4] = {g.x, g.y, g.z, g.w}, uw[4] = {u.x, u.y, u.z, u.w};
  uint32_t out[4];
#pragma unroll
  for (int k = 0; k < 4; k++) {
    out[k] = ebb::gated_pair(p.activation, ebb::unpack_bf16(gw[k]), ebb::unpack_bf16(uw[k]));
  }
  *reinterpret_cast<uint4*>(p.out + static_cast<uint64_t>(blockIdx.x) * p.intermediate + i) =
      make_uint4(out[0], out[1], out[2], out[3]);
}
