// x = activation(x + bias), between the products of an MLP without gates.
#include "../common/activation.cuh"
#include "../common/eight.cuh"
#include "../common/kernel.cuh"

namespace ebb {

struct ActivateParams {
  bf16* x;              // [rows][width], in place
  const bf16* bias;     // [width], or null
  uint32_t width;       // a multiple of 8
  uint32_t activation;  // of common/activation.cuh
};
static_assert(sizeof(ActivateParams) == 24);

}  // namespace ebb

// Grid: (rows, width / 2048).
EBB_KERNEL(activate_rows, ebb::ActivateParams, 256, 1) {
  const uint32_t i = (blockIdx.y * 256 + threadIdx.x) * 8;
  if (i >= p.width) return;
  ebb::bf16* const at = p.x + static_cast<uint64_t>(blockIdx.x) * p.width + i;
  float x[8], bias[8] = {};
  ebb::load8(at, x);
  if (p.bias) ebb::load8(p.bias + i, bias);
#pragma unroll
  for (int k = 0; k < 8; k++) x[k] = ebb::activate(p.activation, x[k] + bias[k]);
  ebb::store8(at, x);
}
