// What the kernels of recurrent layers share: the rows of a step's sequences, their states, and
// what the delta rule and Mamba-2 ask of them. Mamba-2's C, B and x are queries, keys and values
// here.
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

// How a state changes with a token.
enum class Rule { kDelta, kMamba };

struct RuleParams {
  SeqStates states;        // [v_heads][k_dim][v_dim]
  bf16* heads;             // [rows][in_width]: queries, keys and values, then z, then b, a or dt
  bf16* out;               // [rows][v_heads * v_dim]
  const bf16* decay;       // [2][v_heads]
  const bf16* decay_bias;  // [2][v_heads]
  const bf16* norm;        // [v_dim], of the delta rule
  const bf16* skip;        // [v_heads], of Mamba-2
  uint32_t k_heads;
  uint32_t v_heads;
  uint32_t k_dim;
  uint32_t v_dim;
  uint32_t in_width;
  uint32_t lanes;  // that share a column of the state: a power of two, k_dim <= 32 lanes
  float eps;
  // Where a row has its queries, its keys, and its values.
  uint32_t queries_at;
  uint32_t keys_at;
  uint32_t values_at;
  float least_step;  // time steps of Mamba-2
  float most_step;

  __device__ __forceinline__ uint32_t k_width() const { return k_heads * k_dim; }
  __device__ __forceinline__ uint32_t v_width() const { return v_heads * v_dim; }
  // Where a row has its z, and its b, a, or dt.
  __device__ __forceinline__ uint32_t z_at() const { return 2 * k_width() + v_width(); }
  __device__ __forceinline__ uint32_t gates_at() const { return 2 * (k_width() + v_width()); }
  __device__ __forceinline__ uint32_t k_head(uint32_t head) const {
    return head / (v_heads / k_heads);
  }
};
static_assert(sizeof(RuleParams) == 128);

// What is added to the sum of squares of a query or a key.
constexpr float kDeltaEps = 1e-6f;

__device__ __forceinline__ float both_halves(const bf16* halves, uint32_t len, uint32_t at) {
  return __bfloat162float(halves[at]) + __bfloat162float(halves[len + at]);
}

// What a row's gates ask of a head's state: by what logarithm it decays, and how strongly the token
// is written.
struct DecayAndStrength {
  float log_decay, strength;
};

// The gates of a head.
template <Rule R>
struct HeadGates {
  float rate, bias;

  __device__ __forceinline__ HeadGates(const RuleParams& p, uint32_t head)
      : rate(-expf(both_halves(p.decay, p.v_heads, head))),
        bias(both_halves(p.decay_bias, p.v_heads, head)) {}

  // Of the row at `gates`.
  __device__ __forceinline__ DecayAndStrength of(const RuleParams& p, const bf16* gates,
                                                 uint32_t head) const {
    if constexpr (R == Rule::kMamba) {
      const float step = softplus(__bfloat162float(gates[head]) + bias);
      const float limited = fminf(fmaxf(step, p.least_step), p.most_step);
      return {rate * limited, limited};
    } else {
      const float a = __bfloat162float(gates[p.v_heads + head]);
      return {rate * softplus(a + bias), sigmoid(__bfloat162float(gates[head]))};
    }
  }
};

}  // namespace ebb
