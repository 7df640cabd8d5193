// Attention of layers whose heads are parts: a head of `parts` records, or KV heads in several
// layers of the KV cache (model/kv_place.rs). Decode and prefill alike, at 16 bit; of any width up
// to 512 channels.
//
// A CTA attends up to eight queries, rows of a sequence times query heads of a KV head, to 32
// tokens at a time: keys and values of all channels in shared memory, a warp a query for the
// scores, two channels a thread for the sums. A result depends on its own row and the range of
// tokens alone, not on the queries beside it.
#pragma once
#include "../common/eight.cuh"
#include "../common/reduce.cuh"
#include "decode.cuh"
#include "prefill.cuh"

namespace ebb {

struct PartsParams {
  PageTable pages;
  const bf16* q;            // [rows][q_heads * head_dim]
  bf16* out;                // [rows][q_heads * head_dim]
  const DecodeUnit* units;  // of decode, as the next four
  const uint32_t* unit_count;
  const DecodeRow* rows;
  const uint32_t* row_count;
  float* partial_o;          // [partials][q_heads][head_dim], not divided by the sum
  float2* partial_ml;        // [partials][q_heads]: maximum (base 2, scaled) and sum
  const PrefillTile* tiles;  // of prefill
  uint32_t layer;            // the first of the KV cache, counted as pages lie
  uint32_t records;          // of a layer and side of the KV cache
  uint32_t parts;            // records of a head
  uint32_t q_heads;
  uint32_t kv_heads;
  uint32_t head_dim;     // a multiple of 16 * parts, at most 512
  float scale_log2;      // what scores are multiplied with, times log2(e)
  uint32_t tile_groups;  // of prefill: CTAs that share the rows of a tile
  ScoreParams scores;
};
static_assert(sizeof(PartsParams) == 168);

constexpr int kPartsThreads = 256, kPartsTokens = 32, kPartsQueries = 8, kMostPartsDim = 512;

// Shared memory for heads of `head_dim` channels: queries in f32, keys in rows that are 16 bytes
// longer, so that a warp's loads of a chunk of 32 rows do not meet in banks, values, and results.
struct PartsShared {
  float* queries;  // [8][head_dim]
  uint8_t* keys;   // [32] rows of key_bytes
  uint8_t* values;
  float2* ml;  // [8]: of each query, once it is done, its maximum (base 2) and its sum
  uint32_t key_bytes, value_bytes;  // of a row

  __device__ __forceinline__ PartsShared(uint8_t* shared, uint32_t head_dim) {
    value_bytes = 2 * head_dim;
    key_bytes = value_bytes + 16;
    queries = reinterpret_cast<float*>(shared);
    keys = shared + kPartsQueries * 4 * head_dim;
    values = keys + kPartsTokens * key_bytes;
    ml = reinterpret_cast<float2*>(values + kPartsTokens * value_bytes);
  }
};

// What a CTA attends: some rows of a sequence, one behind the other, and some query heads of a KV
// head. Query i is of row i / heads.
struct PartsWork {
  uint32_t row;       // the first
  uint32_t rows;      // rows * heads <= 8
  uint32_t position;  // of the first row
  uint32_t kv_head;
  uint32_t head;  // the first query head
  uint32_t heads;
  uint32_t begin, end;  // tokens: the first row sees none before, the last one none behind
  uint32_t first_block;
};

// A thread's sums of its two channels for each query.
struct PartsSums {
  float o[kPartsQueries][2];
};

// Brings tokens `first .. first + 32` of a KV head, as far as they are within begin .. end; zeros
// in place of others, which may lie nowhere.
__device__ __forceinline__ void load_tokens(const PartsParams& p, const PartsWork& w,
                                            const PartsShared& s, uint32_t first) {
  const uint32_t chunks = p.head_dim / 8, of_part = chunks / p.parts,
                 row_bytes = 2 * p.head_dim / p.parts;
  for (uint32_t i = threadIdx.x; i < kPartsTokens * chunks; i += kPartsThreads) {
    const uint32_t token = i / chunks, chunk = i - token * chunks, at = first + token;
    uint4 kv[2] = {make_uint4(0, 0, 0, 0), make_uint4(0, 0, 0, 0)};
    if (at >= w.begin && at < w.end) {
      const uint32_t part = chunk / of_part, record = w.kv_head * p.parts + part;
      const uint32_t layer = p.layer + record / p.records, within = record % p.records;
#pragma unroll
      for (int side = 0; side < 2; side++) {
        const RecordPlace place = record_place(p.pages, (layer * 2 + side) * p.records + within,
                                               kSubBlockTokens * row_bytes);
        const uint32_t frame =
            sub_block_frame(p.pages, w.first_block, at / kSubBlockTokens, place.slot);
        const uint32_t offset =
            place.offset + at % kSubBlockTokens * row_bytes + (chunk - part * of_part) * 16;
        kv[side] = *reinterpret_cast<const uint4*>(frame_address(p.pages, frame, offset));
      }
    }
    *reinterpret_cast<uint4*>(s.keys + token * s.key_bytes + chunk * 16) = kv[0];
    *reinterpret_cast<uint4*>(s.values + token * s.value_bytes + chunk * 16) = kv[1];
  }
}

// The product of a query and this lane's token.
__device__ __forceinline__ float parts_score(const PartsParams& p, const PartsShared& s,
                                             uint32_t query) {
  const float* const q = s.queries + query * p.head_dim;
  const uint8_t* const k = s.keys + threadIdx.x % 32 * s.key_bytes;
  float sums[2] = {0.f, 0.f};
  for (uint32_t c = 0; c < p.head_dim; c += 8) {
    float keys[8];
    unpack8(*reinterpret_cast<const uint4*>(k + 2 * c), keys);
    const float4 a = *reinterpret_cast<const float4*>(q + c),
                 b = *reinterpret_cast<const float4*>(q + c + 4);
    sums[0] =
        fmaf(a.x, keys[0], fmaf(a.y, keys[1], fmaf(a.z, keys[2], fmaf(a.w, keys[3], sums[0]))));
    sums[1] =
        fmaf(b.x, keys[4], fmaf(b.y, keys[5], fmaf(b.z, keys[6], fmaf(b.w, keys[7], sums[1]))));
  }
  return (sums[0] + sums[1]) * p.scale_log2;
}

// Attends; leaves maxima and sums of all queries in shared memory, for every thread to read.
__device__ __forceinline__ void attend_parts(const PartsParams& p, const PartsWork& w,
                                             const PartsShared& s, PartsSums& sums) {
  __shared__ float weights[kPartsTokens][kPartsQueries];
  __shared__ float rescale[kPartsQueries];
  const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const bool has_query = warp < w.rows * w.heads;
  const uint32_t query_row = has_query ? warp / w.heads : 0;
  const uint32_t position = w.position + query_row,
                 seen_from = max(first_seen(p.scores, position), w.begin);
  const bf16* const q = p.q + (static_cast<uint64_t>(w.row + query_row) * p.q_heads + w.head +
                               (has_query ? warp % w.heads : 0)) *
                                  p.head_dim;
  for (uint32_t c = lane; c < p.head_dim; c += 32)
    s.queries[warp * p.head_dim + c] = has_query ? __bfloat162float(q[c]) : 0.f;
#pragma unroll
  for (int i = 0; i < kPartsQueries; i++) sums.o[i][0] = sums.o[i][1] = 0.f;
  float most = kNoScore, sum = 0.f;

#pragma unroll 1
  for (uint32_t first = w.begin / kPartsTokens * kPartsTokens; first < w.end;
       first += kPartsTokens) {
    load_tokens(p, w, s, first);
    __syncthreads();
    const uint32_t token = first + lane;
    const bool sees = has_query && token >= seen_from && token <= position && token < w.end;
    float score = parts_score(p, s, warp);
    if (p.scores.cap != 0.f) score = capped(p.scores, score);
    const float next = fmaxf(most, warp_max(sees ? score : kNoScore));
    const float weight = sees ? ex2(score - next) : 0.f, old = ex2(most - next);
    sum = fmaf(sum, old, warp_sum(weight));
    most = next;
    weights[lane][warp] = weight;
    if (lane == 0) rescale[warp] = old;
    __syncthreads();
    if (2 * threadIdx.x < p.head_dim) {
#pragma unroll
      for (int i = 0; i < kPartsQueries; i++) {
        sums.o[i][0] *= rescale[i];
        sums.o[i][1] *= rescale[i];
      }
#pragma unroll 4
      for (int t = 0; t < kPartsTokens; t++) {
        const float2 v = unpack_bf16(
            *reinterpret_cast<const uint32_t*>(s.values + t * s.value_bytes + 4 * threadIdx.x));
#pragma unroll
        for (int i = 0; i < kPartsQueries; i++) {
          sums.o[i][0] = fmaf(weights[t][i], v.x, sums.o[i][0]);
          sums.o[i][1] = fmaf(weights[t][i], v.y, sums.o[i][1]);
        }
      }
    }
    __syncthreads();
  }
  if (lane == 0) s.ml[warp] = make_float2(most, sum);
  __syncthreads();
}

// Writes finished queries to `out`, or those of a part of a sequence to `partial`.
__device__ __forceinline__ void store_parts(const PartsParams& p, const PartsWork& w,
                                            const PartsShared& s, const PartsSums& sums,
                                            bool is_whole, uint32_t partial) {
  if (2 * threadIdx.x >= p.head_dim) return;
#pragma unroll
  for (int i = 0; i < kPartsQueries; i++) {
    if (static_cast<uint32_t>(i) >= w.rows * w.heads) continue;
    const float2 ml = s.ml[i];
    const uint32_t row = i / w.heads, head = w.head + i % w.heads;
    if (is_whole) {
      // A sink may be more than all scores.
      const float sink =
          p.scores.sinks == nullptr ? 0.f : exponential_of_sink(p.scores, head, ml.x);
      const float inverse = 1.f / (ml.y + sink);
      const uint64_t at =
          (static_cast<uint64_t>(w.row + row) * p.q_heads + head) * p.head_dim + 2 * threadIdx.x;
      *reinterpret_cast<uint32_t*>(p.out + at) =
          pack_bf16(sums.o[i][0] * inverse, sums.o[i][1] * inverse);
    } else {
      const uint64_t at = static_cast<uint64_t>(partial) * p.q_heads + head;
      *reinterpret_cast<float2*>(p.partial_o + at * p.head_dim + 2 * threadIdx.x) =
          make_float2(sums.o[i][0], sums.o[i][1]);
      if (threadIdx.x == 0) p.partial_ml[at] = ml;
    }
  }
}

// Query heads of a KV head in sets of eight.
struct HeadSets {
  uint32_t group, sets;
  __device__ __forceinline__ explicit HeadSets(const PartsParams& p) {
    group = p.q_heads / p.kv_heads;
    sets = (group + kPartsQueries - 1) / kPartsQueries;
  }
  __device__ __forceinline__ void take(PartsWork& w, uint32_t item) const {
    w.kv_head = item / sets;
    const uint32_t before = item % sets * kPartsQueries;
    w.head = w.kv_head * group + before;
    w.heads = min(group - before, static_cast<uint32_t>(kPartsQueries));
  }
};

}  // namespace ebb
