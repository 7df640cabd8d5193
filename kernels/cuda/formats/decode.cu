// Shrunk blocks of one layer back to 16 bit, into scratch frames that the 16-bit attention kernels
// read: bf16, to nearest, of what the CPU's codecs decode.
#include "grouped.cuh"
#include "page.cuh"
#include "polar.cuh"
#include "shrink.cuh"

namespace ebb {

struct DecodeJob {
  uint32_t position;
  uint32_t source;  // first frame, into KvPool::frames
  // first of its scratch frames, an id; they are neighbours, `scratch_slots` a sub-block
  uint32_t target;
  uint32_t shrink;  // the shrink of this step that wrote it, or kNoShrink
};
static_assert(sizeof(DecodeJob) == 16);
constexpr uint32_t kNoShrink = ~0u;

struct DecodeParams {
  KvPool pool;
  const DecodeJob* jobs;
  const ShrinkJob* shrinks;
  const unsigned long long* failures;
  uint32_t layer;
  uint32_t scratch_slots;  // frames of a sub-block, of which one layer's records never fill more
};
static_assert(sizeof(DecodeParams) == 80);

// Zeros and steps of the groups of the page whose metadata, and ranks, are in `s`.
template <int HeadDim, bool Keys, bool ByRow>
__device__ __forceinline__ void find_steps(uint32_t format, PageShared& s) {
  constexpr uint32_t kGroups = ByRow ? 128 : Fragments<HeadDim, Keys>::kColumns;
  const uint32_t c = threadIdx.x;
  if (c < kGroups) {
    float levels = levels_of(format);
    if (Keys && slabs_of(format) > 0 && s.old_rank[c] < slabs_of(format) * (HeadDim / 8))
      levels = 15.f;
    s.zero[c] = fp16_value(s.meta[c]);
    s.scale[c] = __fdiv_rn(fp16_value(s.meta[kGroups + c]), levels);
  }
  __syncthreads();
}

// Values of codes to staged rows, bf16.
template <int HeadDim, bool Keys, bool ByRow>
__device__ __forceinline__ void dequantise(const Codes& q, const PageShared& s, uint8_t* staged) {
  using F = Fragments<HeadDim, Keys>;
  const uint32_t g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
  for (int i = 0; i < 8; i++) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
#pragma unroll
      for (int r = 0; r < 2; r++) {
        const float2 zero = of_groups<HeadDim, Keys, ByRow>(s.zero, i, h, r),
                     step = of_groups<HeadDim, Keys, ByRow>(s.scale, i, h, r);
        const float x =
            __fadd_rn(__fmul_rn(static_cast<float>(q[i][h] >> 8 * r & 0xff), step.x), zero.x);
        const float y = __fadd_rn(
            __fmul_rn(static_cast<float>(q[i][h] >> (16 + 8 * r) & 0xff), step.y), zero.y);
        uint32_t pair = pack_bf16(x, y), token, chunk;
        if (Keys) {
          token = 16 * F::row_tile(i) + 8 * r + g, chunk = 2 * F::column_tile(i) + h;
        } else {
          // The pair is two tokens of a channel; it should be two channels of a token.
          pair = movmatrix_trans(pair);
          token = 16 * F::column_tile(i) + 8 * h + g, chunk = 2 * F::row_tile(i) + r;
        }
        *reinterpret_cast<uint32_t*>(staged + staged_offset<HeadDim>(token, chunk) + 4 * t) = pair;
      }
    }
  }
}

// A record of one dense plane to staged rows.
template <int HeadDim, bool Keys, bool ByRow>
__device__ __forceinline__ void decode_plane(const RecordBytes& src, uint32_t format,
                                             uint8_t* shared, PageShared& s) {
  Codes q;
  read_page<HeadDim, Keys, ByRow>(src, format, shared, s, q);
  find_steps<HeadDim, Keys, ByRow>(format, s);
  dequantise<HeadDim, Keys, ByRow>(q, s, shared);
  __syncthreads();
}

// A record of any format below 16 bit to staged rows.
template <int HeadDim, bool Keys>
__device__ __forceinline__ void decode_rows(const RecordBytes& src, uint32_t format,
                                            uint8_t* shared, PageShared& s) {
  if (is_grouped(format)) {
    read_grouped<HeadDim, Keys>(src, format, shared);
    return;
  }
  if constexpr (Keys) {
    if (is_polar(format)) {
      read_polar<HeadDim>(src, format, shared, reinterpret_cast<float2*>(shared + 256 * HeadDim),
                          s);
      return;
    }
    if (is_by_token(format)) {
      decode_plane<HeadDim, true, true>(src, format, shared, s);
      return;
    }
  }
  decode_plane<HeadDim, Keys, false>(src, format, shared, s);
}

template <int HeadDim, bool Keys>
__device__ __forceinline__ void decode(const DecodeParams& p, uint8_t* shared, PageShared& s,
                                       uint32_t page, uint32_t head) {
  const KvPool& pool = p.pool;
  const DecodeJob job = p.jobs[blockIdx.y];
  const uint32_t record = page * pool.kv_heads + head;
  // Of a shrink that failed the old frames are read.
  uint32_t position = job.position, source = job.source;
  if (job.shrink != kNoShrink && p.failures[job.shrink] != kNoFailure) {
    position = p.shrinks[job.shrink].from;
    source = p.shrinks[job.shrink].source;
  }
  constexpr uint32_t kRowBytes = 2 * HeadDim, kSubBytes = 16 * kRowBytes;
  const PageOfPosition from = page_of(pool, position, page, HeadDim);
  RecordBytes src = {};
  if (position > 0) src = record_bytes(pool, from, head, source);
  if (from.format != kF16) decode_rows<HeadDim, Keys>(src, from.format, shared, s);
  const uint32_t slot = record / pool.records_per_frame;
  uint8_t* const out = pool.arena + pool.frame_bytes * (job.target + slot % p.scratch_slots) +
                       (record - slot * pool.records_per_frame) * kSubBytes;
#pragma unroll
  for (int k = 0; k < 8; k++) {
    const uint32_t v = threadIdx.x + k * 2 * HeadDim, token = v / (HeadDim / 8),
                   chunk = v % (HeadDim / 8);
    const uint8_t* at = shared + staged_offset<HeadDim>(token, chunk);
    if (from.format == kF16) {
      at = position > 0 ? src.at(token * kRowBytes + 16 * chunk)
                        : sub_record(pool, record, source, token / 16, kSubBytes) +
                              token % 16 * kRowBytes + 16 * chunk;
    }
    uint8_t* to = out + pool.frame_bytes * (token / 16 * p.scratch_slots) + token % 16 * kRowBytes +
                  16 * chunk;
    *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(at);
  }
}

template <int HeadDim>
__device__ __forceinline__ void decode_record(const DecodeParams& p, uint8_t* shared) {
  __shared__ PageShared s;
  const uint32_t side = blockIdx.x / p.pool.kv_heads, head = blockIdx.x - side * p.pool.kv_heads;
  if (side == 0) {
    decode<HeadDim, true>(p, shared, s, 2 * p.layer, head);
  } else {
    decode<HeadDim, false>(p, shared, s, 2 * p.layer + 1, head);
  }
}

}  // namespace ebb

// Grid: (KV heads of both sides, blocks).
EBB_KERNEL(decode_pages_d64, ebb::DecodeParams, 128, 8) {
  EBB_DYNAMIC_SHARED(shared);
  ebb::decode_record<64>(p, shared);
}
EBB_KERNEL(decode_pages_d128, ebb::DecodeParams, 256, 4) {
  EBB_DYNAMIC_SHARED(shared);
  ebb::decode_record<128>(p, shared);
}
