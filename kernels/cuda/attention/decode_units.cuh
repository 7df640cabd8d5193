// Units of decode attention over shrunk blocks (decode_mixed.cuh): their queries come to shared
// memory, a warp gathers its part of a unit's result in registers, and parts are merged in the
// order of slots.
#pragma once
#include "decode_polar.cuh"

namespace ebb {

template <int D, int STAGES, int SETS, Way WAY, bool POLAR, bool ANY>
struct MixedUnits : PolarKeys<D, STAGES, SETS, WAY, POLAR, ANY> {
  using Base = PolarKeys<D, STAGES, SETS, WAY, POLAR, ANY>;
  using Base::behind_of, Base::brought, Base::claimed, Base::fragment_lane, Base::is_item,
      Base::item, Base::left, Base::merged, Base::own_of, Base::part_of, Base::power_in,
      Base::query16_of, Base::query_of, Base::unit_at;
  using Base::kFragmentLanes, Base::kOctets, Base::kOwnSteps, Base::kOwnTiles, Base::kPair,
      Base::kPart, Base::kShares, Base::kSteps, Base::kUnits, Base::kWarps;
  using Base::lane, Base::p, Base::params, Base::shared;
  using Power = typename Base::Power;
  using typename Base::Scores;

  static constexpr uint32_t kHeads = 4 * SETS;
  static constexpr uint32_t kVectors = kSteps / 4;  // of a lane's queries
  // of O, fp16 pairs [SETS][kSteps][32]; then float4 [kPair][kHeads]: m, l, l times O's power
  static constexpr uint32_t kPartWords = kSteps * 32 * SETS;
  static_assert(4 * kPartWords + 16 * kHeads * Base::kPair == kPart);

  // O^T without zeros' part: channels 16 i + g of each set, then + 8; of a pair, every other i
  float o[kOwnSteps][2 * SETS];

  // What scores of the lane's heads are relative to, base 2. Of more sets than one it lies in
  // shared memory, as the sums below do: there registers are short.
  struct Most {
    float of[SETS];
  };
  Most own_most;
  // Of this lane's keys: sums of probabilities, and of probabilities times zeros.
  struct alignas(8 * (SETS < 4 ? SETS : 2)) Sums {
    float l[SETS], zeros[SETS];
  };
  Sums own_sums;
  __device__ __forceinline__ uint8_t* kept() const {
    return shared + Base::kSumsOffset + (this->warp * kPair + this->mate) * Base::kSums;
  }
  __device__ __forceinline__ float* kept_most(uint32_t set) const {
    return SETS == 2 ? this->state().most[set % 2]
                     : reinterpret_cast<float*>(kept() + 32 * sizeof(Sums)) + 4 * set;
  }
  __device__ __forceinline__ Most most() const {
    Most m = own_most;
    if constexpr (SETS > 1) {
#pragma unroll
      for (int set = 0; set < SETS; set++) m.of[set] = kept_most(set)[lane % 4];
    }
    return m;
  }
  // The same for all lanes of a head; they may read it after a warp-wide barrier.
  __device__ __forceinline__ void set_most(const Most& m) {
    if constexpr (SETS == 1) {
      own_most = m;
    } else if (lane < 4) {
      for (int set = 0; set < SETS; set++) kept_most(set)[lane] = m.of[set];
    }
  }
  __device__ __forceinline__ Sums sums() const {
    return SETS == 1 ? own_sums : reinterpret_cast<const Sums*>(kept())[lane];
  }
  __device__ __forceinline__ void set_sums(const Sums& x) {
    if constexpr (SETS == 1)
      own_sums = x;
    else
      reinterpret_cast<Sums*>(kept())[lane] = x;
  }
  __device__ __forceinline__ void add_sums(const Sums& x) {
    Sums to = sums();
#pragma unroll
    for (int set = 0; set < SETS; set++) to.l[set] += x.l[set], to.zeros[set] += x.zeros[set];
    set_sums(to);
  }

  __device__ __forceinline__ explicit MixedUnits(const MixedDecodeParams& params) : Base(params) {}

  // A column of a unit: its row among those of the sequence, and its query head.
  struct Column {
    bool is;
    uint32_t row, head;
  };
  __device__ __forceinline__ Column column(uint32_t columns, uint32_t kv_head,
                                           uint32_t number) const {
    const uint32_t at = (columns & (ANY ? 0xfff : 0xffff)) + number,
                   row = at < params.group ? 0 : at / params.group;
    return {row < columns >> 24, row, kv_head * params.group + at - row * params.group};
  }
  // The greatest of the lanes that have the same head, and the sum.
  __device__ __forceinline__ static float most_of_head(float x) {
#pragma unroll
    for (int k = 4; k < 32; k <<= 1) x = fmaxf(x, __shfl_xor_sync(~0u, x, k));
    return x;
  }
  __device__ __forceinline__ static float sum_of_head(float x) {
#pragma unroll
    for (int k = 4; k < 32; k <<= 1) x += __shfl_xor_sync(~0u, x, k);
    return x;
  }

  // A score of a product with a 16-bit key, base 2.
  __device__ __forceinline__ float score_of(float product) const {
    const float score = product * p.scale_log2;
    return ANY && params.scores.cap != 0.f ? capped(params.scores, score) : score;
  }

  // ---- queries ----

  // Where a unit's queries are.
  struct Place {
    uint32_t row, columns;
  };
  __device__ __forceinline__ Place place_of_queries(uint32_t ordinal) const {
    const DecodeUnit* const unit = unit_at(item(ordinal));
    return {look_up(&unit->row), look_up(&unit->columns)};
  }

  // Brings a unit's queries to shared memory: as B fragments, whose columns 2t and 2t + 1 are a
  // lane's heads (of one set, one head twice), as they are and in fp16, divided by a power of two
  // so that times any range they are finite; and the latter as each lane needs them to multiply
  // them with ranges. Of no unit, zeros.
  __device__ __forceinline__ void bring_queries(uint32_t ordinal, Place place) const {
    const uint32_t number = item(ordinal), g = lane / 4, t = lane % 4, slot = ordinal % kUnits;
    const uint32_t columns = is_item(number) ? place.columns : 0;
#pragma unroll 1
    for (uint32_t octet = 0; octet < kOctets; octet++) {
      const uint32_t of_set = 8 * octet + g / 2 + (SETS > 1 ? g % 2 * 4 : 0);
      const Column c = column(columns, number % p.kv_heads, of_set);
      const bool is = c.is;
      const uint32_t* const q = reinterpret_cast<const uint32_t*>(
          p.q + static_cast<uint64_t>(is ? place.row + c.row : 0) * p.q_stride +
          (is ? c.head : 0) * D);
      uint32_t words[kSteps][2];
#pragma unroll
      for (int s = 0; s < kSteps; s++)
        for (int r = 0; r < 2; r++) words[s][r] = is ? q[8 * s + 4 * r + t] : 0u;
      uint2* query = const_cast<uint2*>(query_of(slot)) + octet * kSteps * kFragmentLanes;
      uint2* query16 = const_cast<uint2*>(query16_of(slot)) + octet * kSteps * kFragmentLanes;
      float most = 0.f;
#pragma unroll
      for (int s = 0; s < kSteps; s++) {
#pragma unroll
        for (int r = 0; r < 2; r++) {
          const float2 x = unpack_bf16(words[s][r]);
          most = fmaxf(most, fmaxf(fabsf(x.x), fabsf(x.y)));
        }
      }
      most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
      most = fmaxf(most, __shfl_xor_sync(~0u, most, 2));
      const Power power = power_in(2.f * most);
      uint32_t own[2][kSteps];
#pragma unroll
      for (int s = 0; s < kSteps; s++) {
        uint32_t f[2];
#pragma unroll
        for (int r = 0; r < 2; r++) {
          const float2 x = unpack_bf16(words[s][r]);
          f[r] = pack_f16(x.x * power.inverse, x.y * power.inverse);
        }
        if (SETS > 1 || g % 2 == 0) {
          query[s * kFragmentLanes + fragment_lane()] = make_uint2(f[0], f[1]);
          query16[s * kFragmentLanes + fragment_lane()] = make_uint2(words[s][0], words[s][1]);
        }
        if (SETS == 4) continue;
        f[0] = movmatrix_trans(f[0]);
        f[1] = movmatrix_trans(f[1]);
#pragma unroll
        for (int set = 0; set < SETS; set++)
          own[set][s] = __byte_perm(f[0], f[1], set == 0 ? 0x5410 : 0x7632);
      }
#pragma unroll
      for (int set = 0; set < SETS && SETS < 4; set++) {
#pragma unroll
        for (uint32_t i = 0; i < kVectors; i++)
          reinterpret_cast<uint4*>(own_of(slot, set))[i * 32 + lane] = make_uint4(
              own[set][4 * i], own[set][4 * i + 1], own[set][4 * i + 2], own[set][4 * i + 3]);
      }
      if (t == 0 && (SETS > 1 || g % 2 == 0)) {
        reinterpret_cast<float*>(shared + Base::kScaleOffset)[slot * Base::kColumns + of_set] =
            p.scale_log2 * power.value;
        behind_of(slot)[of_set] = static_cast<uint8_t>(is ? (columns >> 24) - 1 - c.row : 0);
      }
    }
    __syncwarp();
    if (lane == 0) set_turn(brought(ordinal), ordinal);
  }

  // ---- scores ----

  // Scores in place of products, capped and hidden as they are to be: so are a block's of which the
  // sequence's last row does not see the first `hidden` tokens. A product is worth itself * factor
  // (of lower row halves, `lower` times that) + begin, which is left as one and zero.
  __device__ __forceinline__ void settle_scores(uint32_t slot, uint32_t hidden, Scores& x,
                                                float (&factor)[SETS], float& lower,
                                                float (&begin)[SETS]) const {
    const bool caps = params.scores.cap != 0.f;
    if (hidden == 0 && !caps) return;
#pragma unroll
    for (int set = 0; set < SETS; set++) {
      const float second = factor[set] * lower;
      const int first = static_cast<int>(hidden) - behind_of(slot)[4 * set + lane % 4] -
                        static_cast<int>(16 * this->mate + lane / 4);
#pragma unroll
      for (int i = 0; i < static_cast<int>(kOwnTiles); i++) {
#pragma unroll
        for (int r = 0; r < 2; r++) {
          float y = fmaf(x[set][i][r], r == 0 ? factor[set] : second, begin[set]);
          if (caps) y = capped(params.scores, y);
          // Row tiles of a pair are every other one.
          x[set][i][r] = 16 * static_cast<int>(kPair) * i + 8 * r < first ? -INFINITY : y;
        }
      }
      factor[set] = 1.f, begin[set] = 0.f;
    }
    lower = 1.f;
  }

  // ---- results ----

  __device__ __forceinline__ void reset() {
#pragma unroll
    for (int d = 0; d < kOwnSteps; d++)
      for (int i = 0; i < 2 * SETS; i++) o[d][i] = 0.f;
    Most nothing;
    for (int set = 0; set < SETS; set++) nothing.of[set] = kNoScore;
    set_most(nothing);
    set_sums(Sums{});
    __syncwarp();
  }

  // ---- of a pair ----

  __device__ __forceinline__ float2* exchange() const {
    return reinterpret_cast<float2*>(shared + Base::kExchangeOffset + this->warp * Base::kExchange);
  }
  // Waits for the other one.
  __device__ __forceinline__ void meet() const {
    named_barrier_sync(1 + Base::kTeams + this->team * kWarps + this->warp, 64);
  }
  // Adds up what both have, the same for all lanes of a head.
  __device__ __forceinline__ void add_mates(float (&l)[SETS], float (&zeros)[SETS]) const {
    if (lane < 4) {
      for (int set = 0; set < SETS; set++)
        exchange()[this->mate * kHeads + 4 * set + lane] = make_float2(l[set], zeros[set]);
    }
    meet();
#pragma unroll
    for (int set = 0; set < SETS; set++) {
      const float2 x = exchange()[4 * set + lane % 4], y = exchange()[kHeads + 4 * set + lane % 4];
      l[set] = x.x + y.x, zeros[set] = x.y + y.y;
    }
    meet();  // The next unit's may follow at once.
  }

  // Leaves this warp's part of a unit for those that come to the end of the next one: O / l in
  // fp16, divided by a power of two. False: there was no such unit, only one before it.
  __device__ __forceinline__ bool finish(uint32_t ordinal, uint32_t slot) {
    uint32_t part[SETS][kOwnSteps];
    float factor[SETS], l[SETS], zeros[SETS];
    const Sums sum = sums();
#pragma unroll
    for (int set = 0; set < SETS; set++)
      l[set] = sum_of_head(sum.l[set]), zeros[set] = sum_of_head(sum.zeros[set]);
    if (kPair == 2) add_mates(l, zeros);
#pragma unroll
    for (int set = 0; set < SETS; set++) {
      const float share = l[set] > 0.f ? 1.f / l[set] : 0.f;
      float most = 0.f;
#pragma unroll
      for (int d = 0; d < kOwnSteps; d++) {
#pragma unroll
        for (int i = set; i < 2 * SETS; i += SETS) {
          o[d][i] = (o[d][i] + zeros[set]) * share;
          most = fmaxf(most, fabsf(o[d][i]));
        }
      }
      const Power power = power_in(most_of_head(most));
      factor[set] = l[set] * power.value;
#pragma unroll
      for (int d = 0; d < kOwnSteps; d++)
        part[set][d] = pack_f16(o[d][set] * power.inverse, o[d][SETS + set] * power.inverse);
    }
    if (ordinal > 0) settle(ordinal - 1);
    if (!is_item(item(ordinal))) return false;
    uint32_t* const to = reinterpret_cast<uint32_t*>(part_of(slot));
    const Most top = most();
#pragma unroll
    for (int set = 0; set < SETS; set++) {
#pragma unroll
      for (int d = 0; d < kOwnSteps; d++)
        to[(set * kSteps + d * kPair + this->mate) * 32 + lane] = part[set][d];
      if (lane < 4)
        reinterpret_cast<float4*>(to + kPartWords)[this->mate * kHeads + 4 * set + lane] =
            make_float4(top.of[set], l[set], factor[set], 0.f);
    }
    __syncwarp();
    if (lane == 0) add_turn(left(), 1);
    return true;
  }

  // Does what there is to do once all have done with a unit, together with whoever else has come, a
  // share at a time: its queries make room for others', its parts are merged. The parts can be
  // overwritten after.
  __device__ __forceinline__ void settle(uint32_t ordinal) {
    const uint32_t end = (ordinal + 1) * kShares;
    wait_for_more(left(), (ordinal + 1) * kWarps * kPair - 1);
    for (;;) {
      uint32_t share = 0;
      if (lane == 0) share = claim_turn(claimed(), end);
      share = __shfl_sync(~0u, share, 0);
      if (share >= end) break;
      share -= ordinal * kShares;
      if (share == 0) {
        // The first to come has most time, and nobody waits for it soon.
        bring_queries(ordinal + kUnits, place_of_queries(ordinal + kUnits));
        continue;
      }
      merge_channels(ordinal, share - 1);
      __syncwarp();
      if (lane == 0) add_turn(merged(), 1);
    }
    wait_for_more(merged(), (ordinal + 1) * kSteps - 1);
  }

  // Writes 16 channels of the result of a unit, or of its partial.
  __device__ __forceinline__ void merge_channels(uint32_t ordinal, uint32_t d) const {
    const uint32_t number = item(ordinal), g = lane / 4;
#pragma unroll
    for (uint32_t set = 0; set < SETS; set++) {
      const uint32_t t = 4 * set + lane % 4;
      // What slot g counts for.
      static_assert(kWarps <= 8);
      const float4 of = reinterpret_cast<const float4*>(part_of(min(g, kWarps - 1)) +
                                                        4 * kPartWords)[d % kPair * kHeads + t];
      const bool is = g < kWarps;
      const float top = most_of_head(is ? of.x : -INFINITY);
      const float e = is ? ex2(of.x - top) : 0.f, weight = is ? of.z * e : 0.f;
      const float sum = sum_of_head(is ? of.y * e : 0.f);
      float x[2] = {};
#pragma unroll
      for (uint32_t slot = 0; slot < kWarps; slot++) {
        const float2 v = unpack_f16(
            reinterpret_cast<const uint32_t*>(part_of(slot))[(set * kSteps + d) * 32 + lane]);
        const float c = __shfl_sync(~0u, weight, slot * 4 + lane % 4);
        x[0] = fmaf(v.x, c, x[0]);
        x[1] = fmaf(v.y, c, x[1]);
      }
      const DecodeUnit& unit = p.units[number / p.kv_heads];
      const Column c = column(unit.columns, number % p.kv_heads, t);
      if (!c.is) continue;
      if (unit.splits == 1) {
        const float all = ANY ? sum + exponential_of_sink(params.scores, c.head, top) : sum;
        bf16* const out =
            p.out + (static_cast<uint64_t>(unit.row + c.row) * p.q_heads + c.head) * D + 16 * d + g;
        out[0] = __float2bfloat16(x[0] / all);
        out[8] = __float2bfloat16(x[1] / all);
      } else {
        const uint64_t partial =
            static_cast<uint64_t>(unit.partial + c.row * unit.splits + unit.split) * p.q_heads +
            c.head;
        float* const out = p.partial_o + partial * D + 16 * d + g;
        __stcg(out, x[0]);
        __stcg(out + 8, x[1]);
        if (g == 0 && d == 0) __stcg(&p.partial_ml[partial], make_float2(top, sum));
      }
    }
  }
};

}  // namespace ebb
