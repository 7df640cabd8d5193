// What the kernels of recurrent layers share: the rows of a step's sequences, their states, and the
// gates of the delta rule.
#pragma once
#include "../common/activation.cuh"
#include "../common/ptx.cuh"

namespace ebb {

// The rows of a sequence.
struct StepSeq {
  uint32_t slot;
  uint32_t first_row;
  uint32_t rows;
  uint32_t position;  // of the first row
};
static_assert(sizeof(StepSeq) == 16);

// Up to 64 rows of a sequence, whose chunks are beside each other.
struct StepChunk {
  uint32_t seq;
  uint32_t first_row;
  uint32_t rows;
  uint32_t reserved;

  __device__ __forceinline__ bool is_last_of(const StepSeq& seq) const {
    return first_row + rows == seq.first_row + seq.rows;
  }
};
static_assert(sizeof(StepChunk) == 16);

// The chunks of a sequence.
struct ChunkedSeq {
  uint32_t seq;
  uint32_t first_chunk;
  uint32_t chunks;
  uint32_t reserved;
};
static_assert(sizeof(ChunkedSeq) == 16);

// A layer's states of a step's sequences.
struct SeqStates {
  const StepSeq* seqs;
  const uint32_t* seq_count;
  float* states;  // [slots][slot_floats], the layer's first one
  uint64_t slot_floats;

  __device__ __forceinline__ float* of(const StepSeq& seq) const {
    return states + seq.slot * slot_floats;
  }
};

struct DeltaParams {
  SeqStates states;        // [v_heads][k_dim][v_dim]
  bf16* heads;             // [rows][in_width]: queries, keys, values, z, b, a
  bf16* out;               // [rows][v_heads * v_dim]
  const bf16* decay;       // [2][v_heads]
  const bf16* decay_bias;  // [2][v_heads]
  const bf16* norm;        // [v_dim]
  uint32_t k_heads;
  uint32_t v_heads;
  uint32_t k_dim;
  uint32_t v_dim;
  uint32_t in_width;
  uint32_t lanes;  // that share a column of the state: a power of two, k_dim <= 32 lanes
  float eps;
  uint32_t reserved;

  // Where a row has its keys, its values, its z, and its b, a behind them.
  __device__ __forceinline__ uint32_t k_width() const { return k_heads * k_dim; }
  __device__ __forceinline__ uint32_t v_width() const { return v_heads * v_dim; }
  __device__ __forceinline__ uint32_t values_at() const { return 2 * k_width(); }
  __device__ __forceinline__ uint32_t z_at() const { return 2 * k_width() + v_width(); }
  __device__ __forceinline__ uint32_t strengths_at() const { return 2 * (k_width() + v_width()); }
  __device__ __forceinline__ uint32_t k_head(uint32_t head) const {
    return head / (v_heads / k_heads);
  }
};
static_assert(sizeof(DeltaParams) == 104);

// What is added to the sum of squares of a query or a key.
constexpr float kDeltaEps = 1e-6f;

__device__ __forceinline__ float both_halves(const bf16* halves, uint32_t len, uint32_t at) {
  return __bfloat162float(halves[at]) + __bfloat162float(halves[len + at]);
}

// Logarithms of a head's decays.
struct DeltaGate {
  float rate, bias;

  __device__ __forceinline__ DeltaGate(const DeltaParams& p, uint32_t head)
      : rate(-expf(both_halves(p.decay, p.v_heads, head))),
        bias(both_halves(p.decay_bias, p.v_heads, head)) {}

  __device__ __forceinline__ float log_decay(float a) const {
    const float x = a + bias;
    return rate * (x > 20.f ? x : log1pf(expf(x)));
  }
};

}  // namespace ebb
