// Convolutions of recurrent layers: a thread a channel, which walks rows with the last taps in
// registers, those of a sequence or of a chunk of it. The bits are the same.
#include "../common/kernel.cuh"
#include "recurrent.cuh"

namespace ebb {

struct ConvParams {
  SeqStates states;     // [taps - 1][channels], the oldest token first
  bf16* heads;          // [rows][in_width]; but for short convolutions, convolved in place
  bf16* out;            // [rows][channels], of short convolutions
  const bf16* weight;   // [channels][taps]
  const bf16* bias;     // [channels], or null
  const bf16* in_bias;  // [in_width], or null
  uint32_t channels;
  uint32_t taps;  // from 2 to 8
  uint32_t in_width;
  uint32_t reserved;
};
static_assert(sizeof(ConvParams) == 88);

struct ConvChunkParams {
  ConvParams conv;
  const StepChunk* chunks;
  float* before;  // [chunks][taps - 1][channels]: what comes before each chunk
};
static_assert(sizeof(ConvChunkParams) == 104);

constexpr int kTapsMax = 8;
// Rows whose loads are under way at once.
constexpr int kConvRows = 8;

// What a channel's convolution reads.
template <bool Short>
struct ConvInput {
  float bias[3];

  __device__ __forceinline__ ConvInput(const ConvParams& p, uint32_t channel) : bias{} {
    if (Short && p.in_bias != nullptr)
      for (int i = 0; i < 3; i++) bias[i] = __bfloat162float(p.in_bias[i * p.channels + channel]);
  }

  // Of the row at `from`.
  __device__ __forceinline__ float of(const ConvParams& p, const bf16* from) const {
    const float x = __bfloat162float(from[0]) + bias[0];
    return Short ? x * (__bfloat162float(from[2 * p.channels]) + bias[2]) : x;
  }
  __device__ __forceinline__ float gate(const ConvParams& p, const bf16* from) const {
    return Short ? __bfloat162float(from[p.channels]) + bias[1] : 0.f;
  }
};

// Rows of a channel. `from`: what comes before them, or null; `to`: where what comes before the
// next row is left, or null.
template <bool Short>
__device__ __forceinline__ void convolve(const ConvParams& p, uint32_t channel, uint32_t first_row,
                                         uint32_t rows, const float* from, float* to) {
  // Fewer taps are the last ones.
  const int unused = kTapsMax - static_cast<int>(p.taps);
  float weight[kTapsMax], before[kTapsMax - 1];
#pragma unroll
  for (int t = 0; t < kTapsMax; t++) {
    const uint64_t at = static_cast<uint64_t>(channel) * p.taps + t - unused;
    weight[t] = t < unused ? 0.f : __bfloat162float(p.weight[at]);
  }
#pragma unroll
  for (int t = 0; t < kTapsMax - 1; t++) {
    const bool is_there = t >= unused && from != nullptr;
    before[t] = is_there ? from[static_cast<uint64_t>(t - unused) * p.channels] : 0.f;
  }
  const float bias = p.bias == nullptr ? 0.f : __bfloat162float(p.bias[channel]);
  const ConvInput<Short> input(p, channel);
  bf16* row = p.heads + static_cast<uint64_t>(first_row) * p.in_width + channel;
  bf16* out = p.out + static_cast<uint64_t>(first_row) * p.channels + channel;
  for (uint32_t first = 0; first < rows; first += kConvRows) {
    float x[kConvRows], gate[kConvRows];
#pragma unroll
    for (int r = 0; r < kConvRows; r++) {
      x[r] = gate[r] = 0.f;
      if (first + r >= rows) continue;
      const bf16* const at = row + static_cast<uint64_t>(r) * p.in_width;
      x[r] = input.of(p, at);
      gate[r] = input.gate(p, at);
    }
#pragma unroll
    for (int r = 0; r < kConvRows; r++) {
      if (first + r >= rows) break;
      float sum = bias;
#pragma unroll
      for (int t = 0; t < kTapsMax - 1; t++) sum = fmaf(before[t], weight[t], sum);
      sum = fmaf(x[r], weight[kTapsMax - 1], sum);
      if constexpr (Short)
        out[static_cast<uint64_t>(r) * p.channels] = __float2bfloat16(sum * gate[r]);
      else
        row[static_cast<uint64_t>(r) * p.in_width] = __float2bfloat16(silu(sum));
#pragma unroll
      for (int t = 0; t < kTapsMax - 2; t++) before[t] = before[t + 1];
      before[kTapsMax - 2] = x[r];
    }
    row += static_cast<uint64_t>(kConvRows) * p.in_width;
    out += static_cast<uint64_t>(kConvRows) * p.channels;
  }
  if (to == nullptr) return;
#pragma unroll
  for (int t = 0; t < kTapsMax - 1; t++)
    if (t >= unused) to[static_cast<uint64_t>(t - unused) * p.channels] = before[t];
}

template <bool Short>
__device__ __forceinline__ void convolve_seq(const ConvParams& p) {
  if (blockIdx.x >= *p.states.seq_count) return;
  const StepSeq seq = p.states.seqs[blockIdx.x];
  const uint32_t channel = blockIdx.y * 256 + threadIdx.x;
  if (channel >= p.channels) return;
  float* const state = p.states.of(seq) + channel;
  const float* const from = seq.position > 0 ? state : nullptr;
  convolve<Short>(p, channel, seq.first_row, seq.rows, from, state);
}

__device__ __forceinline__ float* before_chunk(const ConvChunkParams& p, uint32_t channel) {
  const uint64_t each = static_cast<uint64_t>(p.conv.taps - 1) * p.conv.channels;
  return p.before + blockIdx.x * each + channel;
}

// Keeps what comes before a chunk: the chunk before it will be overwritten, and the last one leaves
// a new state.
template <bool Short>
__device__ __forceinline__ void keep_before(const ConvChunkParams& p) {
  const StepChunk chunk = p.chunks[blockIdx.x];
  const StepSeq seq = p.conv.states.seqs[chunk.seq];
  const uint32_t channel = blockIdx.y * 256 + threadIdx.x;
  if (channel >= p.conv.channels) return;
  const ConvInput<Short> input(p.conv, channel);
  const float* const state = p.conv.states.of(seq) + channel;
  float* const before = before_chunk(p, channel);
  const uint32_t kept = p.conv.taps - 1, known = chunk.first_row - seq.first_row;
  for (uint32_t t = 0; t < kept; t++) {
    float x = 0.f;
    if (t + known >= kept) {
      const uint64_t row = chunk.first_row + t - kept;
      x = input.of(p.conv, p.conv.heads + row * p.conv.in_width + channel);
    } else if (seq.position > 0) {
      x = state[static_cast<uint64_t>(t + known) * p.conv.channels];
    }
    before[static_cast<uint64_t>(t) * p.conv.channels] = x;
  }
}

template <bool Short>
__device__ __forceinline__ void convolve_chunk(const ConvChunkParams& p) {
  const StepChunk chunk = p.chunks[blockIdx.x];
  const StepSeq seq = p.conv.states.seqs[chunk.seq];
  const uint32_t channel = blockIdx.y * 256 + threadIdx.x;
  if (channel >= p.conv.channels) return;
  float* const to = chunk.is_last_of(seq) ? p.conv.states.of(seq) + channel : nullptr;
  convolve<Short>(p.conv, channel, chunk.first_row, chunk.rows, before_chunk(p, channel), to);
}

}  // namespace ebb

// Grid of both: (sequences at most, channels / 256).
EBB_KERNEL(conv_in_place, ebb::ConvParams, 256, 1) { ebb::convolve_seq<false>(p); }
EBB_KERNEL(conv_short, ebb::ConvParams, 256, 1) { ebb::convolve_seq<true>(p); }

// Grid of all: (chunks, channels / 256). The first of a kind, then the second.
EBB_KERNEL(keep_before_in_place, ebb::ConvChunkParams, 256, 1) { ebb::keep_before<false>(p); }
EBB_KERNEL(keep_before_short, ebb::ConvChunkParams, 256, 1) { ebb::keep_before<true>(p); }
EBB_KERNEL(conv_chunks_in_place, ebb::ConvChunkParams, 256, 1) { ebb::convolve_chunk<false>(p); }
EBB_KERNEL(conv_chunks_short, ebb::ConvChunkParams, 256, 1) { ebb::convolve_chunk<true>(p); }
