// The sample: top-k, min-p and top-p by selection, then the token at a random point of what they
// keep, in id order.
//
// One CTA a sample. A cut is found among the ranks of the tokens without sorting them: a histogram
// over scaled logits names the bin in which it lies, the tokens of that bin are gathered and
// sorted. Bins with too many tokens are halved first.
#include "row.cuh"

namespace ebb {

constexpr int kPickThreads = 512, kPickWarps = kPickThreads / 32;
constexpr uint32_t kBins = 2048, kGather = 1024;
// How far below the best the first search goes: for the k best, and for a nucleus, which ends
// further down.
constexpr float kBestLevel = -5.f, kNucleusLevel = -9.f;

struct PickShared {
  // Sums by bin, of bits 0..9, 10..19 and 20..30 of each measure: shared memory adds 32 bits at a
  // time, and none overflows.
  uint32_t bins[3][kBins];
  uint64_t keys[kGather];
  uint32_t weights[kGather];
  uint64_t scratch[kPickWarps];
  uint64_t found;
  uint64_t rest;
  uint32_t place;
  uint32_t count;
};

// Ascending as scaled logits descend.
__device__ __forceinline__ uint32_t bin_of(float y) {
  return min(static_cast<uint32_t>(__fmul_rn(-y, kBins / -kZeroBelow)), kBins - 1);
}

// Calls body(id, logit, y) for every token with a scaled logit of at least `level` in the blocks
// that `wanted(max)` names.
template <class Wanted, class Body>
__device__ __forceinline__ void for_tokens(const Row& row, float level, Wanted wanted, Body body) {
  constexpr uint32_t kAtOnce = 4;
  for (uint32_t first = threadIdx.x / 32 * kAtOnce; first < row.blocks;
       first += kPickWarps * kAtOnce) {
    bool on[kAtOnce];
    float v[kAtOnce][4];
#pragma unroll
    for (uint32_t u = 0; u < kAtOnce; u++) {
      on[u] = false;
      if (first + u < row.blocks) {
        const float max = row.maxima[first + u];
        on[u] = row.scaled(max) >= level && wanted(max);
      }
      if (on[u])
#pragma unroll
        for (int i = 0; i < 4; i++) v[u][i] = row.load(first + u, i);
    }
#pragma unroll
    for (uint32_t u = 0; u < kAtOnce; u++) {
      if (!on[u]) continue;
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const float y = row.scaled(v[u][i]);
        if (y >= level) body((first + u) * kBlock + 32 * i + threadIdx.x % 32, v[u][i], y);
      }
    }
  }
}

__device__ __forceinline__ uint64_t bin_sum(const PickShared& s, uint32_t bin) {
  return s.bins[0][bin] + (static_cast<uint64_t>(s.bins[1][bin]) << 10) +
         (static_cast<uint64_t>(s.bins[2][bin]) << 20);
}

// What a cut counts: tokens, or their weights.
template <bool Weighted>
__device__ __forceinline__ uint32_t measure(float y) {
  return Weighted ? weight(y) : 1;
}

// Among the tokens at `level` or above that rank at `from` or better. Fills the histogram; returns
// the sum of measures.
template <bool Weighted>
__device__ uint64_t count_bins(const Row& row, PickShared& s, float level, uint64_t from) {
  for (uint32_t i = threadIdx.x; i < 3 * kBins; i += kPickThreads) s.bins[i / kBins][i % kBins] = 0;
  __syncthreads();
  for_tokens(
      row, level, [&](float max) { return ordered(max) >= from >> 32; },
      [&](uint32_t id, float logit, float y) {
        if (rank(id, logit) < from) return;
        const uint32_t bin = bin_of(y), m = measure<Weighted>(y);
        if (m & 1023) atomicAdd(&s.bins[0][bin], m & 1023);
        if (Weighted && m >> 10 & 1023) atomicAdd(&s.bins[1][bin], m >> 10 & 1023);
        if (Weighted && m >> 20) atomicAdd(&s.bins[2][bin], m >> 20);
      });
  __syncthreads();
  uint64_t own = 0, total;
  for (uint32_t i = threadIdx.x; i < kBins; i += kPickThreads) own += bin_sum(s, i);
  cta_exclusive<kPickWarps>(own, s.scratch, total);
  return total;
}

// The rank of the last of the fewest best tokens whose measures reach `target`, which is at most
// what count_bins returned for the same arguments.
template <bool Weighted>
__device__ uint64_t find_cut(const Row& row, PickShared& s, float level, uint64_t from,
                             uint64_t target) {
  constexpr uint32_t kOwn = kBins / kPickThreads;
  uint64_t own = 0, total;
  for (uint32_t i = 0; i < kOwn; i++) own += bin_sum(s, threadIdx.x * kOwn + i);
  uint64_t before = cta_exclusive<kPickWarps>(own, s.scratch, total);
  if (before < target && target <= before + own) {
    uint32_t at = threadIdx.x * kOwn;
    while (before + bin_sum(s, at) < target) before += bin_sum(s, at++);
    s.place = at;
    s.rest = target - before;
  }
  __syncthreads();
  const uint32_t bin = s.place;
  uint64_t missing = s.rest;  // of the tokens of the bin that rank between low and high
  uint64_t low = from, high = ~0ull;
  auto for_bin = [&](auto body) {
    for_tokens(
        row, level,
        [&](float max) { return bin_of(row.scaled(max)) <= bin && ordered(max) >= low >> 32; },
        [&](uint32_t id, float logit, float y) {
          const uint64_t key = rank(id, logit);
          if (bin_of(y) == bin && key >= low && key <= high) body(key, y);
        });
  };
  auto gather = [&] {
    __syncthreads();
    if (threadIdx.x == 0) s.count = 0;
    __syncthreads();
    for_bin([&](uint64_t key, float y) {
      const uint32_t at = atomicAdd(&s.count, 1u);
      if (at >= kGather) return;
      s.keys[at] = key;
      s.weights[at] = measure<Weighted>(y);
    });
    __syncthreads();
    return s.count;
  };
  uint32_t count = gather();
  if (count > kGather) {
    // Ranks differ, so halving their range ends.
    uint64_t largest = 0, smallest_complement = 0;
    for_bin([&](uint64_t key, float) {
      largest = key > largest ? key : largest;
      smallest_complement = ~key > smallest_complement ? ~key : smallest_complement;
    });
    high = cta_max<kPickWarps>(largest, s.scratch);
    low = ~cta_max<kPickWarps>(smallest_complement, s.scratch);
    while (count > kGather) {
      const uint64_t middle = low + (high - low + 1) / 2;
      uint64_t upper = 0, tokens = 0, upper_all, tokens_all;
      for_bin([&](uint64_t key, float y) {
        if (key < middle) return;
        upper += measure<Weighted>(y);
        tokens++;
      });
      cta_exclusive<kPickWarps>(upper, s.scratch, upper_all);
      cta_exclusive<kPickWarps>(tokens, s.scratch, tokens_all);
      if (upper_all >= missing) {
        low = middle;
        count = static_cast<uint32_t>(tokens_all);
      } else {
        missing -= upper_all;
        high = middle - 1;
        count -= static_cast<uint32_t>(tokens_all);
      }
    }
    count = gather();
  }
  // Bitonic, best first.
  uint32_t padded = 2;
  while (padded < count) padded *= 2;
  for (uint32_t i = count + threadIdx.x; i < padded; i += kPickThreads) {
    s.keys[i] = 0;
    s.weights[i] = 0;
  }
  for (uint32_t k = 2; k <= padded; k *= 2) {
    for (uint32_t j = k / 2; j > 0; j /= 2) {
      __syncthreads();
      if (threadIdx.x < padded / 2) {
        const uint32_t a = 2 * threadIdx.x - (threadIdx.x & (j - 1)), b = a + j;
        if ((s.keys[a] < s.keys[b]) == ((a & k) == 0)) {
          const uint64_t key = s.keys[a];
          s.keys[a] = s.keys[b];
          s.keys[b] = key;
          const uint32_t w = s.weights[a];
          s.weights[a] = s.weights[b];
          s.weights[b] = w;
        }
      }
    }
  }
  __syncthreads();
  const uint32_t mine = 2 * threadIdx.x;
  const uint64_t first = mine < count ? s.weights[mine] : 0,
                 second = mine + 1 < count ? s.weights[mine + 1] : 0;
  before = cta_exclusive<kPickWarps>(first + second, s.scratch, total);
  if (before < missing && missing <= before + first + second)
    s.found = s.keys[before + first >= missing ? mine : mine + 1];
  __syncthreads();
  return s.found;
}

// The least weight that is at least `p` of `total`, which is below 2^53.
__device__ __forceinline__ uint64_t share(uint64_t total, float p) {
  return static_cast<uint64_t>(ceil(static_cast<double>(total) * static_cast<double>(p)));
}

// The rank from which on top-k and top-p keep tokens.
__device__ uint64_t find_cuts(const Row& row, const SampleJob& d, PickShared& s,
                              const uint64_t* sums) {
  uint64_t from = 0;
  if (d.top_k > 0) {
    float level = kBestLevel > d.floor ? kBestLevel : d.floor;
    uint64_t tokens = count_bins<false>(row, s, level, from);
    while (tokens < d.top_k && level > d.floor) {
      level = 2 * level > d.floor ? 2 * level : d.floor;
      tokens = count_bins<false>(row, s, level, from);
    }
    if (tokens > d.top_k) from = find_cut<false>(row, s, level, from, d.top_k);
    __syncthreads();
  }
  if (d.top_p < 1.f) {
    if (d.whole) {
      uint64_t own = 0, total;
      for (uint32_t b = threadIdx.x; b < row.blocks; b += kPickThreads) own += sums[b];
      cta_exclusive<kPickWarps>(own, s.scratch, total);
      const uint64_t target = share(total, d.top_p);
      float level = kNucleusLevel;
      if (count_bins<true>(row, s, level, from) < target) {
        level = kZeroBelow;
        count_bins<true>(row, s, level, from);
      }
      from = find_cut<true>(row, s, level, from, target);
    } else {
      const uint64_t total = count_bins<true>(row, s, d.floor, from);
      from = find_cut<true>(row, s, d.floor, from, share(total, d.top_p));
    }
    __syncthreads();
  }
  return from;
}

// Weights of what is kept, by block.
__device__ void sum_kept(const Row& row, float floor, uint64_t from, uint64_t* sums) {
  for (uint32_t b = threadIdx.x / 32; b < row.blocks; b += kPickWarps) {
    const float max = row.maxima[b];
    uint64_t sum = 0;
    if (row.scaled(max) >= floor && ordered(max) >= from >> 32) {
      WeightSum weights;
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const float logit = row.load(b, i), y = row.scaled(logit);
        if (y >= floor && rank(b * kBlock + 32 * i + threadIdx.x % 32, logit) >= from)
          weights.add(weight(y));
      }
      sum = weights.over_warp();
    }
    if (threadIdx.x % 32 == 0) sums[b] = sum;
  }
  __syncthreads();
}

// The token at a random point of the kept weights, in id order.
__device__ uint32_t walk(const Row& row, PickShared& s, float floor, uint64_t from,
                         const uint64_t* sums, uint64_t bits) {
  const uint32_t each = (row.blocks + kPickThreads - 1) / kPickThreads;
  const uint32_t begin = min(threadIdx.x * each, row.blocks), end = min(begin + each, row.blocks);
  uint64_t own = 0, total;
  for (uint32_t b = begin; b < end; b++) own += sums[b];
  uint64_t before = cta_exclusive<kPickWarps>(own, s.scratch, total);
  const uint64_t point = __umul64hi(bits, total);
  if (before <= point && point < before + own) {
    uint32_t b = begin;
    while (point - before >= sums[b]) before += sums[b++];
    s.place = b;
    s.rest = point - before;
  }
  __syncthreads();
  if (threadIdx.x < 32) {
    const uint32_t id = s.place * kBlock + threadIdx.x * 4;
    uint32_t weights[4];
    uint64_t sum = 0;
#pragma unroll
    for (uint32_t i = 0; i < 4; i++) {
      weights[i] = 0;
      if (id + i < row.vocab) {
        const float logit = row.logits[id + i], y = row.scaled(logit);
        if (y >= floor && rank(id + i, logit) >= from) weights[i] = weight(y);
      }
      sum += weights[i];
    }
    uint64_t up_to = sum;
#pragma unroll
    for (uint32_t k = 1; k < 32; k *= 2) {
      const uint64_t other = __shfl_up_sync(~0u, up_to, k);
      if (threadIdx.x >= k) up_to += other;
    }
    uint64_t rest = s.rest;
    if (up_to - sum <= rest && rest < up_to) {
      rest -= up_to - sum;
      uint32_t i = 0;
      while (rest >= weights[i]) rest -= weights[i++];
      s.found = id + i;
    }
  }
  __syncthreads();
  return static_cast<uint32_t>(s.found);
}

// The first of the largest logits.
__device__ uint32_t largest(const Row& row, PickShared& s) {
  uint64_t best = 0;
  for (uint32_t b = threadIdx.x; b < row.blocks; b += kPickThreads) {
    const uint64_t here = rank(b, row.maxima[b]);
    best = here > best ? here : best;
  }
  const uint32_t block = ~static_cast<uint32_t>(cta_max<kPickWarps>(best, s.scratch));
  best = 0;
  if (threadIdx.x < kBlock && block * kBlock + threadIdx.x < row.vocab)
    best = rank(block * kBlock + threadIdx.x, row.logits[block * kBlock + threadIdx.x]);
  return ~static_cast<uint32_t>(cta_max<kPickWarps>(best, s.scratch));
}

// The logit of `token` as it was before the edits of the sample's row.
__device__ float before_edits(const SampleParams& p, const SampleJob& d, const Row& row,
                              PickShared& s, uint32_t token) {
  if (threadIdx.x == 0) {
    float logit = row.logits[token];
    if (d.also != kNone && p.saved_also[d.row].id == token) logit = p.saved_also[d.row].logit;
    s.found = __float_as_uint(logit);
  }
  __syncthreads();
  for (uint32_t i = threadIdx.x; i < d.edits; i += kPickThreads)
    if (p.edits[d.first_edit + i].id == token) s.found = __float_as_uint(p.saved[d.first_edit + i]);
  __syncthreads();
  return __uint_as_float(static_cast<uint32_t>(s.found));
}

}  // namespace ebb

// Grid: samples.
EBB_KERNEL(sample_pick, ebb::SampleParams, ebb::kPickThreads, 2) {
  __shared__ ebb::PickShared s;
  const ebb::SampleJob& d = p.samples[blockIdx.x];
  const ebb::Row row = ebb::row_of(p, d);
  uint64_t* sums = p.sums + static_cast<uint64_t>(blockIdx.x) * p.blocks;
  uint32_t token;
  float logit = 0.f;
  if (!(row.max < INFINITY)) {
    token = ebb::kNotFinite;
  } else if (row.max == -INFINITY) {
    token = ebb::kNoCandidate;
  } else {
    if (d.inverse_temperature == 0.f) {
      token = ebb::largest(row, s);
    } else {
      const uint64_t from = ebb::find_cuts(row, d, s, sums);
      if (!d.whole || d.top_p < 1.f) ebb::sum_kept(row, d.floor, from, sums);
      token = ebb::walk(row, s, d.floor, from, sums, d.bits);
    }
    __syncthreads();
    if (d.report > 0) logit = ebb::before_edits(p, d, row, s, token);
  }
  if (threadIdx.x == 0) {
    p.results[blockIdx.x].token = token;
    p.results[blockIdx.x].logit = logit;
    // The step after this one embeds it, even if there is none.
    p.sampled[blockIdx.x] = token < p.vocab ? token : 0;
  }
}
