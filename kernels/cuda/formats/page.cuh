// A record read, and written.
#pragma once
#include "kitty.cuh"
#include "pool.cuh"

namespace ebb {

// Bits of the dense plane of a format with one, and eighths of the channels with 4 bits beside
// 2-bit ones.
__device__ __forceinline__ uint32_t plane_bits(uint32_t format) {
  if (format == kInt8) return 8;
  return format == kInt4 || format == kInt4t || format == kInt4Shift || format == kInt4RoundingShift
             ? 4
             : 2;
}
__device__ __forceinline__ bool is_reranked(uint32_t format) {
  return format >= kKitty25Variance && format <= kKitty12Random;
}
__device__ __forceinline__ uint32_t slabs_of(uint32_t format) {
  if (is_reranked(format)) return format == kKitty25Variance || format == kKitty25Random ? 2 : 1;
  return format == kKitty25 ? 2 : format == kKitty12 ? 1 : 0;
}
__device__ __forceinline__ bool is_by_token(uint32_t format) {
  return format == kInt4t || format == kInt2t;
}
__device__ __forceinline__ bool is_shifted(uint32_t format) {
  return format >= kInt4Shift && format <= kInt2RoundingShift;
}
// Steps of a group.
__device__ __forceinline__ float levels_of(uint32_t format) {
  if (format == kInt3) return 7.f;
  const uint32_t bits = plane_bits(format);
  return is_shifted(format) ? 255.f / static_cast<float>(1 << (8 - bits))
                            : static_cast<float>((1 << bits) - 1);
}

// Shared memory of a record: staged rows, then what find_ranges needs. The high bits of boosted
// channels take the staged rows' place.
constexpr uint32_t page_shared_bytes(int head_dim) { return 256 * head_dim + kPartialBytes; }

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

// Codes of a low-bit record of one dense plane: with all bits of boosted channels. Metadata to
// `s.meta` and, of kitty, ranks to `s.old_rank`. `ByRow`: keys by token.
template <int HeadDim, bool Keys, bool ByRow = false>
__device__ __forceinline__ void read_page(const RecordBytes& src, uint32_t format, uint8_t* scratch,
                                          PageShared& s, Codes& q) {
  constexpr uint32_t kMeta = 4 * (ByRow ? 128 : Fragments<HeadDim, Keys>::kColumns),
                     kPlane = 32 * HeadDim;
  const uint32_t tid = threadIdx.x;
  load_codes(q, plane_bits(format), [&](uint32_t o) { return src.at(kMeta + o); });
  if (tid < kMeta / 16)
    reinterpret_cast<uint4*>(s.meta)[tid] = *reinterpret_cast<const uint4*>(src.at(16 * tid));
  if (format == kInt3) add_third_bits(q, [&](uint32_t o) { return src.at(kMeta + kPlane + o); });
  const uint32_t slabs = slabs_of(format);
  if (Keys && slabs > 0) {
    if (tid < HeadDim) s.old_rank[tid] = *src.at(kMeta + kPlane + tid);
    load_slabs<HeadDim>(scratch, slabs,
                        [&](uint32_t o) { return src.at(kMeta + kPlane + HeadDim + o); });
    __syncthreads();
    add_high<HeadDim>(q, scratch, s.old_rank, slabs * (HeadDim / 8));
  }
  __syncthreads();
}

// Writes a page of `format` whose metadata, and ranks, are in `s`.
template <int HeadDim, bool Keys, bool ByRow = false>
__device__ __forceinline__ void write_page(const RecordBytes& dst, uint32_t format,
                                           uint8_t* scratch, const PageShared& s, const Codes& q) {
  constexpr uint32_t kMeta = 4 * (ByRow ? 128 : Fragments<HeadDim, Keys>::kColumns),
                     kPlane = 32 * HeadDim;
  const uint32_t tid = threadIdx.x;
  if (tid < kMeta / 16)
    *reinterpret_cast<uint4*>(dst.at(16 * tid)) = reinterpret_cast<const uint4*>(s.meta)[tid];
  store_codes(q, plane_bits(format), [&](uint32_t o) { return dst.at(kMeta + o); });
  if (format == kInt3) store_third_bits(q, [&](uint32_t o) { return dst.at(kMeta + kPlane + o); });
  const uint32_t slabs = slabs_of(format);
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

}  // namespace ebb
