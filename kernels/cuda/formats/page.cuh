// A record read, and written.
#pragma once
#include "kitty.cuh"
#include "pool.cuh"

namespace ebb {

// Bits of the dense plane, and eighths of the channels with 4 bits beside 2-bit ones.
__device__ __forceinline__ uint32_t plane_bits(uint32_t format) { return format == kInt8 ? 8 : format == kInt4 ? 4 : 2; }
__device__ __forceinline__ uint32_t slabs_of(uint32_t format) { return format == kKitty25 ? 2 : format == kKitty12 ? 1 : 0; }

// Shared memory of a record: staged rows, then what find_ranges needs. The high bits of boosted channels take the staged rows' place.
constexpr uint32_t page_shared_bytes(int head_dim) { return 256 * head_dim + kPartialBytes; }

// Brings 16-bit rows to shared memory; `at(token, byte of the row)` is where they lie.
template <int HeadDim, class At>
__device__ __forceinline__ void stage_rows(uint8_t* staged, At at) {
  const uint32_t base = smem_address(staged);
  const uint64_t policy = policy_evict_first();
#pragma unroll
  for (int k = 0; k < 8; k++) {
    const uint32_t v = threadIdx.x + k * 2 * HeadDim, token = v / (HeadDim / 8), chunk = v % (HeadDim / 8);
    cp_async16(base + staged_offset<HeadDim>(token, chunk), at(token, 16 * chunk), policy);
  }
  cp_async_commit();
  cp_async_wait<0>();
  __syncthreads();
}

// Codes of a low-bit record: with all bits of boosted channels. Metadata to `s.meta` and, of kitty, ranks to `s.old_rank`.
template <int HeadDim, bool Keys>
__device__ __forceinline__ void read_page(const RecordBytes& src, uint32_t format, uint8_t* scratch, PageShared& s, Codes& q) {
  constexpr uint32_t kMeta = 4 * Fragments<HeadDim, Keys>::kColumns, kPlane = 32 * HeadDim;
  const uint32_t tid = threadIdx.x;
  load_codes(q, plane_bits(format), [&](uint32_t o) { return src.at(kMeta + o); });
  if (tid < kMeta / 16) reinterpret_cast<uint4*>(s.meta)[tid] = *reinterpret_cast<const uint4*>(src.at(16 * tid));
  if (format == kInt3) add_third_bits(q, [&](uint32_t o) { return src.at(kMeta + kPlane + o); });
  const uint32_t slabs = slabs_of(format);
  if (Keys && slabs > 0) {
    if (tid < HeadDim) s.old_rank[tid] = *src.at(kMeta + kPlane + tid);
    load_slabs<HeadDim>(scratch, slabs, [&](uint32_t o) { return src.at(kMeta + kPlane + HeadDim + o); });
    __syncthreads();
    add_high<HeadDim>(q, scratch, s.old_rank, slabs * (HeadDim / 8));
  }
  __syncthreads();
}

// Writes a page of `format` whose metadata, and ranks, are in `s`.
template <int HeadDim, bool Keys>
__device__ __forceinline__ void write_page(const RecordBytes& dst, uint32_t format, uint8_t* scratch, const PageShared& s, const Codes& q) {
  constexpr uint32_t kMeta = 4 * Fragments<HeadDim, Keys>::kColumns, kPlane = 32 * HeadDim;
  const uint32_t tid = threadIdx.x;
  if (tid < kMeta / 16) *reinterpret_cast<uint4*>(dst.at(16 * tid)) = reinterpret_cast<const uint4*>(s.meta)[tid];
  store_codes(q, plane_bits(format), [&](uint32_t o) { return dst.at(kMeta + o); });
  if (format == kInt3) store_third_bits(q, [&](uint32_t o) { return dst.at(kMeta + kPlane + o); });
  const uint32_t slabs = slabs_of(format);
  if (Keys && slabs > 0) {
    if (tid < HeadDim / 16) *reinterpret_cast<uint4*>(dst.at(kMeta + kPlane + 16 * tid)) = reinterpret_cast<const uint4*>(s.rank)[tid];
    __syncthreads();  // The scratch may still be read.
    take_high<HeadDim>(q, scratch, s.rank, slabs * (HeadDim / 8));
    __syncthreads();
    store_slabs<HeadDim>(scratch, slabs, [&](uint32_t o) { return dst.at(kMeta + kPlane + HeadDim + o); });
  }
}

}  // namespace ebb
