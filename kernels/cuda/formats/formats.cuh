// Questions about a format that is data, answered by all folders: by comparison with the numbers of
// the formats that an answer holds for.
#pragma once
#include "format.cuh"

#include "format_folders.cuh"

namespace ebb {

template <uint32_t... F>
constexpr bool code_bits_agree(std::integer_sequence<uint32_t, F...>) {
  return ((kReaders[F] != Reader::kCodes ||
           Format<static_cast<PageFormat>(F)>::kLayout.bits +
                   (Format<static_cast<PageFormat>(F)>::kLayout.high_bit > 0) ==
               kCodeBits[F]) &&
          ...);
}
static_assert(code_bits_agree(AllFormats()), "a folder and its line in the registry disagree");

// ---- is it one of a kind? ----

// Kind::holds<F>: whether F is.
template <class Kind, uint32_t... F>
__device__ __forceinline__ bool is_among(uint32_t format, std::integer_sequence<uint32_t, F...>) {
  return ((Kind::template holds<static_cast<PageFormat>(F)> && format == F) || ...);
}
template <class Kind>
__device__ __forceinline__ bool is(uint32_t format) {
  return is_among<Kind>(format, AllFormats());
}

// How many a kind has, before `end`; and their sum, which is the format where there is one.
template <class Kind, uint32_t... F>
constexpr uint32_t count_of(std::integer_sequence<uint32_t, F...>, uint32_t end) {
  return ((Kind::template holds<static_cast<PageFormat>(F)> && F < end ? 1u : 0u) + ...);
}
template <class Kind, uint32_t... F>
constexpr uint32_t sum_of(std::integer_sequence<uint32_t, F...>) {
  return ((Kind::template holds<static_cast<PageFormat>(F)> ? F : 0u) + ...);
}
template <class Kind>
constexpr bool kIsOne = count_of<Kind>(AllFormats(), kFormatCount) == 1;
template <class Kind>
constexpr uint32_t kSum = sum_of<Kind>(AllFormats());
// The same as `is`, for kernels whose machine code was tuned: what is inlined ptxas orders
// otherwise than a comparison where it stands.
#define EBB_IS(FORMAT, ...) \
  (kIsOne<__VA_ARGS__> ? (FORMAT) == kSum<__VA_ARGS__> : is<__VA_ARGS__>(FORMAT))

template <Writer W>
struct WrittenBy {
  template <PageFormat F>
  static constexpr bool holds = kWriters[F] == W;
};
template <Reader R>
struct ReadAs {
  template <PageFormat F>
  static constexpr bool holds = kReaders[F] == R;
};
template <int Bits>
struct ReadAsCodes {
  template <PageFormat F>
  static constexpr bool holds = kReaders[F] == Reader::kCodes && kCodeBits[F] == Bits;
};
// Codes in two planes.
struct ReadAsSplit {
  template <PageFormat F>
  static constexpr bool holds = kReaders[F] == Reader::kCodes && Format<F>::kLayout.high_bit > 0;
};
template <uint32_t Slabs>
struct ReadAsBoosted {
  template <PageFormat F>
  static constexpr bool holds =
      kReaders[F] == Reader::kBoosted && Format<F>::kLayout.slabs == Slabs;
};
// Of polar keys that decode attention reads.
template <uint32_t Bits>
struct HasRadiusBits {
  template <PageFormat F>
  static constexpr bool holds =
      kReaders[F] == Reader::kPolar && Format<F>::kLayout.radius_bits == Bits;
};
struct HasAngleGrid {
  template <PageFormat F>
  static constexpr bool holds = Format<F>::kLayout.angle_grid;
};
struct IsStraight {
  template <PageFormat F>
  static constexpr bool holds = Format<F>::kStraight;
};
struct IsByToken {
  template <PageFormat F>
  static constexpr bool holds = Format<F>::kByToken;
};
// ---- which value has it? ----

// Of::has<F>: whether F has one; Of::value<F>: which.
template <class Of, PageFormat G>
struct SameValue {
  template <PageFormat F>
  static constexpr bool holds =
      Of::template has<F> && Of::template value<F> == Of::template value<G>;
};
// How many have F's; of those, which are in front of F.
template <class Of, PageFormat F>
constexpr uint32_t kShared =
    Of::template has<F> ? count_of<SameValue<Of, F>>(AllFormats(), kFormatCount) : 0;
template <class Of, PageFormat F>
constexpr bool kIsFirst = Of::template has<F> && count_of<SameValue<Of, F>>(AllFormats(), F) == 0;

template <class Of, uint32_t... F>
constexpr PageFormat most_shared(std::integer_sequence<uint32_t, F...>) {
  constexpr uint32_t shared[] = {kShared<Of, static_cast<PageFormat>(F)>...};
  uint32_t most = 0;
  for (uint32_t f = 0; f < kFormatCount; f++) most = shared[f] > shared[most] ? f : most;
  return static_cast<PageFormat>(most);
}
template <class Of>
constexpr PageFormat kMostShared = most_shared<Of>(AllFormats());

// The value that most formats share needs no comparison; so it is also that of a format without.
template <class Of, uint32_t I = 0>
__device__ __forceinline__ auto value_of(uint32_t format) {
  constexpr PageFormat kMost = kMostShared<Of>;
  if constexpr (I == kFormatCount) {
    return Of::template value<kMost>;
  } else {
    constexpr PageFormat F = static_cast<PageFormat>(I);
    if constexpr (kIsFirst<Of, F> && !SameValue<Of, kMost>::template holds<F>) {
      return is<SameValue<Of, F>>(format) ? Of::template value<F> : value_of<Of, I + 1>(format);
    } else {
      return value_of<Of, I + 1>(format);
    }
  }
}

// A member of Layout.
template <auto Member, auto Has>
struct OfLayout {
  template <PageFormat F>
  static constexpr bool has = Format<F>::kLayout.*Has != 0;
  template <PageFormat F>
  static constexpr auto value = Format<F>::kLayout.*Member;
};
template <auto Member>
using OfPlane = OfLayout<Member, &Layout::bits>;
template <auto Member>
using OfPairs = OfLayout<Member, &Layout::radius_bits>;

template <auto Member>
struct OfEncoder {
  template <PageFormat F>
  static constexpr bool has = !std::is_void<typename Format<F>::Encoder>::value;
  template <PageFormat F>
  static constexpr auto value = Format<F>::kLayout.*Member;
};

__device__ __forceinline__ Layout layout_of(uint32_t format) {
  return {value_of<OfPlane<&Layout::bits>>(format),
          value_of<OfPlane<&Layout::levels>>(format),
          value_of<OfPlane<&Layout::slabs>>(format),
          value_of<OfPlane<&Layout::high_bit>>(format),
          value_of<OfPairs<&Layout::radius_bits>>(format),
          value_of<OfPairs<&Layout::angle_grid>>(format),
          value_of<OfEncoder<&Layout::variant>>(format)};
}

// Steps of a group of a format that is quantised straight from 16 bit.
struct StraightLevels {
  template <PageFormat F>
  static constexpr bool has = Format<F>::kStraight;
  template <PageFormat F>
  static constexpr float value = Format<F>::kLayout.levels;
};

// ---- which code writes it, or reads it? ----

struct EncoderOf {
  template <PageFormat F>
  using type = typename Format<F>::Encoder;
};
struct DequantiserOf {
  template <PageFormat F>
  using type = typename Format<F>::Dequantiser;
};
template <class Of, class Codec>
struct Uses {
  template <PageFormat F>
  static constexpr bool holds = std::is_same<typename Of::template type<F>, Codec>::value;
};
template <class Of, PageFormat F>
constexpr bool kIsFirstUse =
    count_of<Uses<Of, typename Of::template type<F>>>(AllFormats(), F) == 0;
// Some codecs know keys alone.
template <class Codec, bool Keys>
constexpr bool kKnows = Keys || !Codec::kKeysOnly;
template <bool Keys>
constexpr bool kKnows<void, Keys> = false;

// Calls `run` with the format's EncoderOf or DequantiserOf.
template <class Of, bool Keys, uint32_t I = 0, class Run>
__device__ __forceinline__ void with_codec(uint32_t format, Run run) {
  if constexpr (I == kFormatCount) {
    no_such_format();
  } else {
    using Codec = typename Of::template type<static_cast<PageFormat>(I)>;
    if constexpr (kKnows<Codec, Keys> && kIsFirstUse<Of, static_cast<PageFormat>(I)>) {
      if (is<Uses<Of, Codec>>(format)) return run(Codec());
    }
    with_codec<Of, Keys, I + 1>(format, run);
  }
}

}  // namespace ebb
