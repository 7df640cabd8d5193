// A record read, and written.
#pragma once
#include "kitty.cuh"
#include "pool.cuh"

namespace ebb {

// Bytes of the dense plane.
template <int HeadDim>
__device__ __forceinline__ uint32_t dense_bytes(const Layout& layout) {
  return 16 * HeadDim * layout.bits;
}

// Shared memory of a record: staged rows, then what find_ranges needs. The high bits of boosted
// channels take the staged rows' place.
constexpr uint32_t page_shared_bytes(int head_dim) {
  return 256 * head_dim + partial_bytes(head_dim);
}

// Brings 16-bit rows to shared memory; `at(token, byte of the row)` is where they lie.
template <int HeadDim, class At>
__device__ __forceinline__ void stage_rows(uint8_t* staged, At at) {
  const uint32_t base = smem_address(staged);
  const uint64_t policy = policy_evict_first();
#pragma unroll
  for (int k = 0; k < 8; k++) {
    const uint32_t v = threadIdx.x + k * 2 * HeadDim, token = v / (HeadDim / 8),
                   chunk = v % (HeadDim / 8);
    cp_async16(base + staged_offset<HeadDim>(token, chunk), at(token, 16 * chunk), policy);
  }
  cp_async_commit();
  cp_async_wait<0>();
  __syncthreads();
}

// Codes of a low-bit record with a dense plane: with all bits of boosted channels. Metadata to
// `s.meta` and, of kitty, ranks to `s.old_rank`. `ByRow`: keys per token.
template <int HeadDim, bool Keys, bool ByRow = false>
__device__ __forceinline__ void read_page(const RecordBytes& src, const Layout& layout,
                                          uint8_t* scratch, SharedOf<HeadDim>& s, Codes& q) {
  constexpr uint32_t kMeta = 4 * (ByRow ? 128 : Fragments<HeadDim, Keys>::kColumns),
                     kPlane = 32 * HeadDim;
  const uint32_t tid = threadIdx.x;
  load_codes(q, layout.bits, [&](uint32_t o) { return src.at(kMeta + o); });
  if (tid < kMeta / 16)
    reinterpret_cast<uint4*>(s.meta)[tid] = *reinterpret_cast<const uint4*>(src.at(16 * tid));
  if (layout.high_bit > 0)
    add_high_bits(q, layout.high_bit,
                  [&](uint32_t o) { return src.at(kMeta + dense_bytes<HeadDim>(layout) + o); });
  const uint32_t slabs = layout.slabs;
  if (Keys && slabs > 0) {
    if (tid < HeadDim) s.old_rank[tid] = *src.at(kMeta + kPlane + tid);
    load_slabs<HeadDim>(scratch, slabs,
                        [&](uint32_t o) { return src.at(kMeta + kPlane + HeadDim + o); });
    __syncthreads();
    add_high<HeadDim>(q, scratch, s.old_rank, slabs * (HeadDim / 8));
  }
  __syncthreads();
}

// Writes a page whose metadata, and ranks, are in `s`.
template <int HeadDim, bool Keys, bool ByRow = false>
__device__ __forceinline__ void write_page(const RecordBytes& dst, const Layout& layout,
                                           uint8_t* scratch, const SharedOf<HeadDim>& s,
                                           const Codes& q) {
  constexpr uint32_t kMeta = 4 * (ByRow ? 128 : Fragments<HeadDim, Keys>::kColumns),
                     kPlane = 32 * HeadDim;
  const uint32_t tid = threadIdx.x;
  if (tid < kMeta / 16)
    *reinterpret_cast<uint4*>(dst.at(16 * tid)) = reinterpret_cast<const uint4*>(s.meta)[tid];
  store_codes(q, layout.bits, [&](uint32_t o) { return dst.at(kMeta + o); });
  if (layout.high_bit > 0)
    store_high_bits(q, layout.high_bit,
                    [&](uint32_t o) { return dst.at(kMeta + dense_bytes<HeadDim>(layout) + o); });
  const uint32_t slabs = layout.slabs;
  if (Keys && slabs > 0) {
    if (tid < HeadDim / 16)
      *reinterpret_cast<uint4*>(dst.at(kMeta + kPlane + 16 * tid)) =
          reinterpret_cast<const uint4*>(s.rank)[tid];
    __syncthreads();  // The scratch may still be read.
    take_high<HeadDim>(q, scratch, s.rank, slabs * (HeadDim / 8));
    __syncthreads();
    store_slabs<HeadDim>(scratch, slabs,
                         [&](uint32_t o) { return dst.at(kMeta + kPlane + HeadDim + o); });
  }
}

// 8-bit codes of the rows that are staged in `scratch`, which keeps them. False if they have none;
// then thread 0 has the failure.
template <int HeadDim, bool Keys>
__device__ __forceinline__ bool quantise_to_8(uint8_t* scratch, SharedOf<HeadDim>& s, Codes& q,
                                              uint64_t& failure) {
  uint16_t* const partials = reinterpret_cast<uint16_t*>(scratch + 256 * HeadDim);
  if (!find_ranges<HeadDim, Keys>(scratch, partials, s, 255.f, failure)) return false;
  quantise<HeadDim, Keys>(scratch, s, 255.f, q);
  return true;
}

}  // namespace ebb
