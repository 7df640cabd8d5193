// Blocks of decode attention over shrunk blocks (decode_mixed.cuh), a warp each: scores,
// probabilities, values.
#pragma once
#include "decode_products.cuh"

namespace ebb {

template <int D, int STAGES, int SETS, Way WAY, bool POLAR, bool ANY>
struct MixedBlocks : CodeProducts<D, STAGES, SETS, WAY, POLAR, ANY> {
  using Base = CodeProducts<D, STAGES, SETS, WAY, POLAR, ANY>;
  using Base::attend_polar, Base::behind_of, Base::most_of_head, Base::query16_of,
      Base::range_weights, Base::scale_of, Base::settle_scores, Base::stage, Base::state,
      Base::wait;
  using Base::kSteps, Base::kTiles;
  using Base::lane, Base::o, Base::p;
  using typename Base::Most, typename Base::Scores, typename Base::Sums, typename Base::Weights;

  static constexpr float kSlack = 8.f;  // powers of two

  __device__ __forceinline__ explicit MixedBlocks(const MixedDecodeParams& params) : Base(params) {}

  // ---- scores ----

  // Turns products into probabilities: a score is product * factor (of upper and of lower row
  // halves) + begin, base 2.
  __device__ __forceinline__ void weigh(Scores& x, const float (&upper)[SETS], float lower,
                                        const float (&begin)[SETS]) {
    float top[SETS];
#pragma unroll
    for (int set = 0; set < SETS; set++) {
      float top0 = x[set][0][0], top1 = x[set][0][1];
#pragma unroll
      for (int i = 1; i < kTiles; i++) {
        top0 = fmaxf(top0, x[set][i][0]);
        top1 = fmaxf(top1, x[set][i][1]);
      }
      top[set] = fmaf(fmaxf(top0, top1 * lower), upper[set], begin[set]);
    }
    const Most m = rescale(top);
#pragma unroll
    for (int set = 0; set < SETS; set++) {
      const float from = begin[set] - m.of[set], second = upper[set] * lower;
#pragma unroll
      for (int i = 0; i < kTiles; i++) {
        x[set][i][0] = ex2(fmaf(x[set][i][0], upper[set], from));
        x[set][i][1] = ex2(fmaf(x[set][i][1], second, from));
      }
    }
  }

  // Products with a block's keys in `x`, and what scores are of them: of upper row halves factor *
  // product + begin, of lower ones with `lower` times the factor.
  __device__ __forceinline__ void attend_keys(uint32_t slot, uint32_t format, Scores& x,
                                              float (&factor)[SETS], float& lower,
                                              float (&begin)[SETS]) {
    if (EBB_IS(format, ReadAs<Reader::kRows>)) {
#pragma unroll
      for (int i = 0; i < kTiles; i++) {
        float s[4];
        this->score_rows(query16_of(slot), s);
#pragma unroll
        for (int set = 0; set < SETS; set++) x[set][i][0] = s[set], x[set][i][1] = s[2 + set];
      }
#pragma unroll
      for (int set = 0; set < SETS; set++) factor[set] = p.scale_log2, begin[set] = 0.f;
      lower = 1.f;
      return;
    }
    if (POLAR && this->is_polar(format)) {
      attend_polar(slot, format, x, begin);
#pragma unroll
      for (int set = 0; set < SETS; set++)
        factor[set] = scale_of(slot, set), begin[set] *= factor[set];
      lower = 1.f;
      return;
    }
    // Each with its own copy of what comes before the products, which the compiler weaves into
    // them.
#define EBB_KEYS(BITS)                                                          \
  if (EBB_IS(format, ReadAsCodes<BITS>))                                        \
    Base::template attend_codes<BITS, false>(slot, 0, x, factor, lower, begin); \
  else
    EBB_CODE_BITS_DOWN(EBB_KEYS)
#undef EBB_KEYS
    if (EBB_IS(format, ReadAs<Reader::kBoosted>))
      Base::template attend_codes<2, true>(slot, EBB_IS(format, ReadAsBoosted<2>) ? 2 : 1, x,
                                           factor, lower, begin);
    else
      EBB_NO_SUCH_FORMAT();
  }

  // Moves what exponents are relative to, if y of any lane is more, to kSlack above the most, so
  // that it rarely moves; what it is now.
  __device__ __forceinline__ Most rescale(float (&y)[SETS]) {
    Most m = this->most();
    if (!__any_sync(~0u, y[0] > m.of[0] || y[SETS - 1] > m.of[SETS - 1])) return m;
    float e[SETS];
    Sums sum = this->sums();
#pragma unroll
    for (int set = 0; set < SETS; set++) {
      y[set] = most_of_head(y[set]);
      y[set] = y[set] > m.of[set] ? y[set] + kSlack : m.of[set];
      e[set] = ex2(m.of[set] - y[set]);
      m.of[set] = y[set];
      sum.l[set] *= e[set];
      sum.zeros[set] *= e[set];
    }
    __syncwarp();  // All have read what is set.
    this->set_most(m);
    this->set_sums(sum);
#pragma unroll
    for (int d = 0; d < kSteps; d++)
      for (int i = 0; i < 2 * SETS; i++) o[d][i] *= e[i % SETS];
    return m;
  }

  // ---- values ----

  // Adds 16 tokens of 16 bit, of which `tokens` are, with their probabilities.
  __device__ __forceinline__ void add_tile(const float (&y)[SETS][2], uint32_t tokens, Sums& sum) {
#pragma unroll
    for (int set = 0; set < SETS; set++) sum.l[set] += y[set][0] + y[set][1];
    this->add_rows(this->split(y), tokens, o);
  }

  // ---- a block ----

  // `to_end`: tokens from the tile's first to the sequence's end, of which each row but the last
  // sees fewer. `hidden`: first tokens that the last row does not see; of those each other row
  // sees more.
  __device__ __forceinline__ void attend_tile(uint32_t slot, uint32_t to_end, uint32_t hidden) {
    const int g = lane / 4;
    float s[4], y[SETS][2], top[SETS];
    this->score_rows(query16_of(slot), s);
#pragma unroll
    for (int set = 0; set < SETS; set++) {
      const int behind = behind_of(slot)[4 * set + lane % 4],
                seen = static_cast<int>(to_end) - behind, first = static_cast<int>(hidden) - behind;
      y[set][0] = g < seen && (!ANY || g >= first) ? this->score_of(s[set]) : -INFINITY;
      y[set][1] = g + 8 < seen && (!ANY || g + 8 >= first) ? this->score_of(s[2 + set]) : -INFINITY;
      top[set] = fmaxf(y[set][0], y[set][1]);
    }
    const Most m = rescale(top);
#pragma unroll
    for (int set = 0; set < SETS; set++)
      for (int r = 0; r < 2; r++) y[set][r] = ex2(y[set][r] - m.of[set]);
    Sums sum = {};
    add_tile(y, min(to_end, 16u), sum);
    this->add_sums(sum);
  }

  __device__ __forceinline__ void attend_block(uint32_t slot, uint32_t key_format) {
    Scores x;
    float factor[SETS], lower, begin[SETS];
    attend_keys(slot, key_format, x, factor, lower, begin);
    if (ANY) {
      // What is known of the block is known with its values, too: it is not kept.
      wait();
      settle_scores(slot, Base::hidden_of_block(state().info[stage()]), x, factor, lower, begin);
    }
    weigh(x, factor, lower, begin);
    const uint8_t* const record = wait();
    const uint32_t format = state().info[stage()] >> 20 & 15;
    if (EBB_IS(format, ReadAs<Reader::kRows>)) {
      Sums sum = {};
#pragma unroll
      for (int i = 0; i < kTiles; i++) {
        float y[SETS][2];
#pragma unroll
        for (int set = 0; set < SETS; set++) y[set][0] = x[set][i][0], y[set][1] = x[set][i][1];
        add_tile(y, 16, sum);
      }
      this->add_sums(sum);
      return;
    }
    Weights w;
    range_weights(record, x, w);
#define EBB_VALUES(BITS)                             \
  if (EBB_IS(format, ReadAsCodes<BITS>))             \
    Base::template multiply_values<BITS>(record, w); \
  else
    EBB_CODE_BITS_UP(EBB_VALUES)
#undef EBB_VALUES
    EBB_NO_SUCH_FORMAT();
  }
};

}  // namespace ebb
