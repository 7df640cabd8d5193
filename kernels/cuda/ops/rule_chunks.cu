// The gated delta rule and Mamba-2 in chunks: a CTA walks the chunks of a sequence and head with
// some columns of the state in registers (rule_chunks.cuh). A warp has 16 rows of each chunk, and
// of the state the 32 rows of as many channels of keys.
#include "rule_chunks.cuh"

namespace ebb {

// Shared memory. Two stages of a chunk: keys, queries, and scalars of the record. Behind them a
// matrix of the state as two bf16, in whose place V' comes, by itself and as the state takes it.
// Behind that what T is multiplied with.
constexpr uint32_t kMatrixBytes = kChunkRows * kChunkKeyDim * 2;
constexpr uint32_t kStageScalarsAt = 2 * kMatrixBytes;
constexpr uint32_t kScalarBytes = 3 * kChunkRows * 4;
constexpr uint32_t kStageBytes = kStageScalarsAt + kScalarBytes;
constexpr uint32_t kStateAt = 2 * kStageBytes;
constexpr uint32_t kStateBytes = kChunkKeyDim * kSliceColumns * 2;
constexpr uint32_t kValueBytes = kChunkRows * kSliceColumns * 2;
constexpr uint32_t kRestAt = kStateAt + 2 * kStateBytes;
constexpr uint32_t kSliceShared = kRestAt + 2 * kValueBytes;
static_assert(kSliceShared == 91648);
// V', as the state takes it.
constexpr uint32_t kTakenAt = kStateAt + 2 * kValueBytes;
static_assert(kTakenAt + 2 * kValueBytes == kRestAt);

// Column tiles of a slice, of 8.
constexpr int kColumnTiles = kSliceColumns / 8;
using SliceSums = float[kColumnTiles][4];

struct RuleSlice {
  const RuleChunkParams& p;
  uint8_t* const shared;
  const uint32_t address;  // of `shared`
  const uint32_t warp, lane, g, t;
  const uint32_t head, first_column;
  const uint32_t key_steps;  // of 16 channels

  __device__ __forceinline__ RuleSlice(const RuleChunkParams& p, uint8_t* shared)
      : p(p),
        shared(shared),
        address(smem_address(shared)),
        warp(threadIdx.x / 32),
        lane(threadIdx.x % 32),
        g(lane / 4),
        t(lane % 4),
        head(blockIdx.y % p.rule.v_heads),
        first_column(blockIdx.y / p.rule.v_heads * kSliceColumns),
        key_steps((p.rule.k_dim + 15) / 16) {}

  __device__ __forceinline__ bool is_column(int tile) const {
    return first_column + 8 * tile < p.rule.v_dim;
  }

  // The state of this thread: element i of a product's tile.
  __device__ __forceinline__ float2* state_at(float* states, int row_tile, int tile,
                                              int half) const {
    const uint64_t channel = 32 * warp + 16 * row_tile + g + 8 * half;
    const uint64_t row = head * p.rule.k_dim + channel;
    return reinterpret_cast<float2*>(states + row * p.rule.v_dim + first_column + 8 * tile + 2 * t);
  }
  __device__ __forceinline__ bool has_state(int row_tile, int tile, int half) const {
    return 32 * warp + 16 * row_tile + g + 8 * half < p.rule.k_dim && is_column(tile);
  }

  template <class Do>
  __device__ __forceinline__ void each_state(const Do& act) const {
#pragma unroll
    for (int m = 0; m < 2; m++)
#pragma unroll
      for (int tile = 0; tile < kColumnTiles; tile++)
#pragma unroll
        for (int half = 0; half < 2; half++) act(m, tile, half);
  }

  // This thread's pair of a row's values.
  __device__ __forceinline__ uint32_t* value_at(const StepChunk& chunk, uint32_t row,
                                                int tile) const {
    const RuleParams& rule = p.rule;
    const uint64_t in_row = chunk.first_row + row;
    const uint32_t column = head * rule.v_dim + first_column + 8 * tile + 2 * t;
    return reinterpret_cast<uint32_t*>(rule.heads + in_row * rule.in_width + rule.values_at +
                                       column);
  }
  __device__ __forceinline__ uint32_t* out_at(const StepChunk& chunk, uint32_t row,
                                              int tile) const {
    const uint64_t in_row = chunk.first_row + row;
    const uint32_t column = head * p.rule.v_dim + first_column + 8 * tile + 2 * t;
    return reinterpret_cast<uint32_t*>(p.rule.out + in_row * p.rule.v_width() + column);
  }

  // Leaves outputs as two bf16, the lesser in place of the values, for `delta_finish` or
  // `mamba_finish`.
  __device__ __forceinline__ void put_out(const StepChunk& chunk, const SliceSums& sums) const {
#pragma unroll
    for (int tile = 0; tile < kColumnTiles; tile++)
#pragma unroll
      for (int half = 0; half < 2; half++) {
        const uint32_t row = 16 * warp + g + 8 * half;
        if (row >= chunk.rows || !is_column(tile)) continue;
        const SplitPair pair(sums[tile][2 * half], sums[tile][2 * half + 1]);
        *out_at(chunk, row, tile) = pair.hi;
        *value_at(chunk, row, tile) = pair.lo;
      }
  }

  // T diag(b) of this warp's rows.
  __device__ __forceinline__ void load_inverse(uint32_t index, SplitTile (&inverse)[4]) const {
    const uint32_t* const tiles =
        record_of(p, index, head) + kRecordTilesAt + tiles_before(warp) * kTileWords;
    const uint4* const from = reinterpret_cast<const uint4*>(tiles) + lane;
#pragma unroll
    for (uint32_t tile = 0; tile < 4; tile++) {
      if (tile > warp) continue;
      const uint4 hi = from[tile * 64], lo = from[tile * 64 + 32];
      inverse[tile] = {{hi.x, hi.y, hi.z, hi.w}, {lo.x, lo.y, lo.z, lo.w}};
    }
  }

  // Starts copies of a chunk to a stage. Rows and channels that are not there become zeros.
  __device__ __forceinline__ void load(uint32_t index, uint32_t stage) const {
    const RuleParams& rule = p.rule;
    const StepChunk chunk = p.chunks[index];
    const uint32_t to = address + stage * kStageBytes, rows = (chunk.rows + 15) / 16 * 16;
    const uint32_t part = threadIdx.x % 16;
    const bf16* const heads = rule.heads + rule.k_head(head) * rule.k_dim;
    if (part < 2 * key_steps) {
      for (uint32_t row = threadIdx.x / 16; row < rows; row += kChunkThreads / 16) {
        const bool is_there = row < chunk.rows && 8 * part < rule.k_dim;
        const uint64_t in_row = chunk.first_row + (is_there ? row : 0);
        const bf16* const from = heads + in_row * rule.in_width + (is_there ? 8 * part : 0);
        const uint32_t bytes = is_there ? 16 : 0, at = to + wide_place(row, part);
        cp_async16_zfill(at, from + rule.keys_at, bytes);
        cp_async16_zfill(at + kMatrixBytes, from + rule.queries_at, bytes);
      }
    }
    const uint32_t* const scalars = record_of(p, index, head);
    if (threadIdx.x < kScalarBytes / 16)
      cp_async16(to + kStageScalarsAt + 16 * threadIdx.x, scalars + 4 * threadIdx.x);
    cp_async_commit();
  }

  // Leaves element pairs of 16 rows for `load_split`.
  __device__ __forceinline__ void store_split(uint32_t at, uint32_t bytes, uint32_t row,
                                              const SliceSums& sums) const {
#pragma unroll
    for (int tile = 0; tile < kColumnTiles; tile++)
#pragma unroll
      for (int half = 0; half < 2; half++) {
        const SplitPair pair(sums[tile][2 * half], sums[tile][2 * half + 1]);
        uint8_t* const to = shared + at + narrow_place(row + g + 8 * half, tile) + 4 * t;
        *reinterpret_cast<uint32_t*>(to) = pair.hi;
        *reinterpret_cast<uint32_t*>(to + bytes) = pair.lo;
      }
  }

  // Operand B of 16 rows from `row` on and two column tiles.
  __device__ __forceinline__ void load_split(uint32_t at, uint32_t bytes, uint32_t row, int pair,
                                             uint32_t (&hi)[4], uint32_t (&lo)[4]) const {
    const uint32_t from = address + at + narrow_place(row + lane % 16, 2 * pair + lane / 16);
    ldmatrix_x4_trans(hi, from);
    ldmatrix_x4_trans(lo, from + bytes);
  }

  // sums += a of row tile `warp` times rows of a split matrix, up to the diagonal.
  __device__ __forceinline__ void multiply_lower(SliceSums& sums, const SplitTile (&a)[4],
                                                 uint32_t at) const {
#pragma unroll
    for (uint32_t tile = 0; tile < 4; tile++) {
      if (tile > warp) continue;
#pragma unroll
      for (int pair = 0; pair < kColumnTiles / 2; pair++) {
        uint32_t hi[4], lo[4];
        load_split(at, kValueBytes, 16 * tile, pair, hi, lo);
        multiply_split(sums[2 * pair], sums[2 * pair + 1], a[tile], hi, lo);
      }
    }
  }
};

// Products of 16 rows of keys and queries with the state, and of queries with keys. Mamba-2 takes
// none of keys with the state.
template <Rule R>
struct ChunkProducts {
  SliceSums of_k, of_q;
  float scores[8][4];

  __device__ __forceinline__ void multiply(const RuleSlice& s, uint32_t keys) {
#pragma unroll
    for (int tile = 0; tile < kColumnTiles; tile++)
#pragma unroll
      for (int i = 0; i < 4; i++) of_k[tile][i] = of_q[tile][i] = 0.f;
#pragma unroll
    for (int tile = 0; tile < 8; tile++)
#pragma unroll
      for (int i = 0; i < 4; i++) scores[tile][i] = 0.f;
    const uint32_t lane = s.lane;
    for (uint32_t step = 0; step < s.key_steps; step++) {
      uint32_t k[4], q[4], b[4];
      const uint32_t place = keys + wide_place(16 * s.warp + lane % 16, 2 * step + lane / 16);
      if constexpr (R == Rule::kDelta) ldmatrix_x4(k, place);
      ldmatrix_x4(q, place + kMatrixBytes);
#pragma unroll
      for (int pair = 0; pair < kColumnTiles / 2; pair++) {
        uint32_t hi[4], lo[4];
        s.load_split(kStateAt, kStateBytes, 16 * step, pair, hi, lo);
        if constexpr (R == Rule::kDelta)
          multiply_exact(of_k[2 * pair], of_k[2 * pair + 1], k, hi, lo);
        multiply_exact(of_q[2 * pair], of_q[2 * pair + 1], q, hi, lo);
      }
#pragma unroll
      for (uint32_t tile = 0; tile < 4; tile++) {
        if (tile > s.warp) continue;
        const uint32_t row = 16 * tile + lane % 8 + lane / 16 * 8;
        ldmatrix_x4(b, keys + wide_place(row, 2 * step + lane / 8 % 2));
        mma_bf16(scores[2 * tile], q, b[0], b[1]);
        mma_bf16(scores[2 * tile + 1], q, b[2], b[3]);
      }
    }
  }
};

// What a thread knows of its two rows of a chunk.
struct ThreadRows {
  float growth[2];                   // decays from the chunk's start to the row
  float decline[2];                  // and from behind it to the end
  float of_k[2], of_q[2];            // of Mamba-2 the first is the time step
  uint32_t values[kColumnTiles][2];  // pairs

  __device__ __forceinline__ ThreadRows(const RuleSlice& s, const float* sums,
                                        const StepChunk& chunk)
      : values{} {
#pragma unroll
    for (int half = 0; half < 2; half++) {
      const uint32_t row = 16 * s.warp + s.g + 8 * half;
      growth[half] = expf(sums[row]);
      decline[half] = expf(sums[kChunkRows - 1] - sums[row]);
      of_k[half] = sums[kChunkRows + row];
      of_q[half] = sums[2 * kChunkRows + row];
      if (row >= chunk.rows) continue;
#pragma unroll
      for (int tile = 0; tile < kColumnTiles; tile++)
        if (s.is_column(tile)) values[tile][half] = *s.value_at(chunk, row, tile);
    }
  }

  // sums += by[half] times the values.
  __device__ __forceinline__ void add_values(SliceSums& sums, const float (&by)[2]) const {
#pragma unroll
    for (int tile = 0; tile < kColumnTiles; tile++)
#pragma unroll
      for (int half = 0; half < 2; half++) {
        const float2 value = unpack_bf16(values[tile][half]);
        sums[tile][2 * half] = fmaf(by[half], value.x, sums[tile][2 * half]);
        sums[tile][2 * half + 1] = fmaf(by[half], value.y, sums[tile][2 * half + 1]);
      }
  }
};

// P of 16 rows, from products of queries with keys.
template <Rule R>
__device__ __forceinline__ void decay_scores(const RuleSlice& s, const float* sums,
                                             const float (&products)[8][4],
                                             SplitTile (&scores)[4]) {
#pragma unroll
  for (uint32_t tile = 0; tile < 8; tile++) {
    if (tile / 2 > s.warp) continue;
#pragma unroll
    for (uint32_t half = 0; half < 2; half++) {
      const uint32_t row = 16 * s.warp + s.g + 8 * half;
      float score[2];
#pragma unroll
      for (uint32_t i = 0; i < 2; i++) {
        const uint32_t column = 8 * tile + 2 * s.t + i;
        float length = 1.f;
        if constexpr (R == Rule::kDelta)
          length = sums[2 * kChunkRows + row] * sums[kChunkRows + column];
        const float decay = __expf(sums[row] - sums[column]);
        score[i] = column <= row ? products[tile][2 * half + i] * (length * decay) : 0.f;
      }
      scores[tile / 2].set(tile % 2 * 2 + half, score[0], score[1]);
    }
  }
}

// The state behind a chunk, of a warp's rows.
__device__ __forceinline__ void change_state(const RuleSlice& s, uint32_t keys, uint32_t row_tiles,
                                             float decay, SliceSums (&state)[2]) {
  if (32 * s.warp >= s.p.rule.k_dim) return;
#pragma unroll
  for (int m = 0; m < 2; m++)
#pragma unroll
    for (int tile = 0; tile < kColumnTiles; tile++)
#pragma unroll
      for (int i = 0; i < 4; i++) state[m][tile][i] *= decay;
  for (uint32_t step = 0; step < row_tiles; step++) {
    uint32_t hi[2][4], lo[2][4];
#pragma unroll
    for (int pair = 0; pair < kColumnTiles / 2; pair++)
      s.load_split(kTakenAt, kValueBytes, 16 * step, pair, hi[pair], lo[pair]);
#pragma unroll
    for (uint32_t m = 0; m < 2; m++) {
      if (2 * s.warp + m >= s.key_steps) continue;
      uint32_t k[4];
      const uint32_t row = 16 * step + s.lane % 8 + s.lane / 16 * 8;
      const uint32_t part = 4 * s.warp + 2 * m + s.lane / 8 % 2;
      ldmatrix_x4_trans(k, keys + wide_place(row, part));
#pragma unroll
      for (int pair = 0; pair < kColumnTiles / 2; pair++)
        multiply_exact(state[m][2 * pair], state[m][2 * pair + 1], k, hi[pair], lo[pair]);
    }
  }
}

template <Rule R>
__device__ __forceinline__ void rule_chunks(const RuleChunkParams& p) {
  constexpr bool kIsDelta = R == Rule::kDelta;
  EBB_DYNAMIC_SHARED(shared);
  const RuleSlice s(p, shared);
  const ChunkedSeq of = p.chunked[blockIdx.x];
  const StepSeq seq = p.rule.states.seqs[of.seq];
  float* const states = p.rule.states.of(seq);
  SliceSums state[2];
  s.each_state([&](int m, int tile, int half) {
    const bool is_there = seq.position > 0 && s.has_state(m, tile, half);
    const float2 pair = is_there ? *s.state_at(states, m, tile, half) : make_float2(0.f, 0.f);
    state[m][tile][2 * half] = pair.x;
    state[m][tile][2 * half + 1] = pair.y;
  });
  s.load(of.first_chunk, 0);
  const float skip = kIsDelta ? 0.f : __bfloat162float(p.rule.skip[s.head]);
  for (uint32_t index = 0; index < of.chunks; index++) {
    const StepChunk chunk = p.chunks[of.first_chunk + index];
    const uint32_t stage_at = index % 2 * kStageBytes, keys = s.address + stage_at;
    // Logarithms of decays up to each row, lengths of keys, and of queries.
    const float* const sums = reinterpret_cast<const float*>(shared + stage_at + kStageScalarsAt);
    const uint32_t row_tiles = (chunk.rows + 15) / 16;
    for (int m = 0; m < 2; m++)
      s.store_split(kStateAt, kStateBytes, 32 * s.warp + 16 * m, state[m]);
    cp_async_wait<0>();
    __syncthreads();
    if (index + 1 < of.chunks) s.load(of.first_chunk + index + 1, index % 2 ^ 1);

    const bool has_rows = s.warp < row_tiles;
    const ThreadRows rows(s, sums, chunk);
    SplitTile scores[4], inverse[4];
    ChunkProducts<R> products;
    if (has_rows) {
      if constexpr (kIsDelta) s.load_inverse(of.first_chunk + index, inverse);
      products.multiply(s, keys);
      if constexpr (kIsDelta) {
#pragma unroll
        for (int tile = 0; tile < kColumnTiles; tile++)
#pragma unroll
          for (int half = 0; half < 2; half++) {
            const float2 value = unpack_bf16(rows.values[tile][half]);
            const float scale = -rows.growth[half] * rows.of_k[half];
            float* const rest = products.of_k[tile] + 2 * half;
            rest[0] = fmaf(scale, rest[0], value.x);
            rest[1] = fmaf(scale, rest[1], value.y);
          }
        s.store_split(kRestAt, kValueBytes, 16 * s.warp, products.of_k);
      }
      decay_scores<R>(s, sums, products.scores, scores);
    }
    __syncthreads();
    if (has_rows) {
      SliceSums changes = {};
      if constexpr (kIsDelta)
        s.multiply_lower(changes, inverse, kRestAt);
      else
        rows.add_values(changes, rows.of_k);
      s.store_split(kStateAt, kValueBytes, 16 * s.warp, changes);
#pragma unroll
      for (int tile = 0; tile < kColumnTiles; tile++)
#pragma unroll
        for (int i = 0; i < 4; i++)
          changes[tile][i] *= rows.decline[i / 2] * (kIsDelta ? rows.of_k[i / 2] : 1.f);
      s.store_split(kTakenAt, kValueBytes, 16 * s.warp, changes);
    }
    __syncthreads();
    if (has_rows) {
#pragma unroll
      for (int tile = 0; tile < kColumnTiles; tile++)
#pragma unroll
        for (int i = 0; i < 4; i++) products.of_q[tile][i] *= rows.growth[i / 2] * rows.of_q[i / 2];
      s.multiply_lower(products.of_q, scores, kStateAt);
      if constexpr (!kIsDelta) rows.add_values(products.of_q, {skip, skip});
      s.put_out(chunk, products.of_q);
    }
    change_state(s, keys, row_tiles, expf(sums[kChunkRows - 1]), state);
    __syncthreads();
  }
  s.each_state([&](int m, int tile, int half) {
    if (s.has_state(m, tile, half))
      *s.state_at(states, m, tile, half) =
          make_float2(state[m][tile][2 * half], state[m][tile][2 * half + 1]);
  });
}

}  // namespace ebb

// Grid: (sequences in chunks, value heads times slices of columns).
EBB_KERNEL(delta_chunks, ebb::RuleChunkParams, ebb::kChunkThreads, 2) {
  ebb::rule_chunks<ebb::Rule::kDelta>(p);
}
EBB_KERNEL(mamba_chunks, ebb::RuleChunkParams, ebb::kChunkThreads, 2) {
  ebb::rule_chunks<ebb::Rule::kMamba>(p);
}
