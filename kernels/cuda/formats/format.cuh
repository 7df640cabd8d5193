// The page formats as the GPU knows them. Their numbers, and how each is written and read, come
// from src/formats/registry.rs, by way of format_entries.cuh. All else is said by the device.cuh of
// a format's folder, which formats.cuh includes.
#pragma once
#include <stdint.h>
#include <type_traits>
#include <utility>

#include "format_entries.cuh"

namespace ebb {

// Formats that clip have the numbers of those that do not: their records are laid out alike.
enum PageFormat : uint32_t {
#define EBB_NUMBER(FORMAT, WRITER, READER, BITS) FORMAT,
  EBB_FORMATS(EBB_NUMBER)
#undef EBB_NUMBER
      kFormatCount
};
using AllFormats = std::make_integer_sequence<uint32_t, kFormatCount>;

// The kernel that writes a format's pages, from 16-bit ones.
enum class Writer { kTranscode, kEncode };
constexpr Writer kWriters[] = {
#define EBB_WRITER(FORMAT, WRITER, READER, BITS) Writer::WRITER,
    EBB_FORMATS(EBB_WRITER)
#undef EBB_WRITER
};

// How decode attention reads them. kScratch: not at all, they are dequantised to 16-bit rows first.
enum class Reader { kRows, kCodes, kBoosted, kPolar, kScratch };
constexpr Reader kReaders[] = {
#define EBB_READER(FORMAT, WRITER, READER, BITS) Reader::READER,
    EBB_FORMATS(EBB_READER)
#undef EBB_READER
};
// Bits of the codes that decode attention reads.
constexpr int kCodeBits[] = {
#define EBB_BITS(FORMAT, WRITER, READER, BITS) BITS,
    EBB_FORMATS(EBB_BITS)
#undef EBB_BITS
};

// How a record is laid out, as far as code that several formats share needs to know.
struct Layout {
  // Zeros and ranges, then a dense plane.
  uint32_t bits;      // of the plane: 8, 4 or 2; 0: the record has none
  float levels;       // steps of a group
  uint32_t slabs;     // Kitty: eighths of the channels that have 4 bits beside 2-bit ones
  uint32_t high_bit;  // the bit of a code that a further plane, of 1 bit, holds; 0: none does
  // Pairs of angle and radius.
  uint32_t radius_bits;  // of a radius's code; 0: the record has none
  bool angle_grid;       // whether all angles are on one grid
  // What tells formats of one encoder apart, where layouts do not.
  uint32_t variant;
};

// A format, in its folder. It has
//   kLayout      see above
//   kStraight    if transcode.cu writes it: quantised from 16 bit, not by way of 8-bit codes
//   kByToken     if transcode.cu writes it: keys have a group a token
//   Encoder      if encode.cu writes it
//   Dequantiser  unless it has 16-bit rows
//   kCost        if decode attention reads it: what one side of a block takes a warp
template <PageFormat F>
struct Format;

struct AnyFormat {
  static constexpr Layout kLayout = {};
  static constexpr bool kStraight = false;
  static constexpr bool kByToken = false;
  using Encoder = void;
  using Dequantiser = void;
};

// Rows `[token][channel]` in bf16.
struct RowsFormat : AnyFormat {};

// Zeros and ranges by column (per token: of keys by row), then codes in a dense plane.
template <bool ByToken>
struct PlaneDequantiser;
template <int Bits>
struct DenseFormat : AnyFormat {
  static constexpr Layout kLayout = {Bits, static_cast<float>((1 << Bits) - 1)};
  using Dequantiser = PlaneDequantiser<false>;
};
// The same of keys per token.
template <int Bits>
struct ByTokenFormat : DenseFormat<Bits> {
  static constexpr bool kByToken = true;
  using Dequantiser = PlaneDequantiser<true>;
};
// The highest bit of a code is in a plane of its own, behind that of the `Low` others.
template <int Low>
struct SplitFormat : AnyFormat {
  static constexpr Layout kLayout = {Low, static_cast<float>((2 << Low) - 1), 0, Low};
  static constexpr bool kStraight = true;
  using Dequantiser = PlaneDequantiser<false>;
};
// Kitty: 2-bit codes, but 4 bits for `Slabs` eighths of the channels.
template <int Slabs>
struct BoostedFormat : AnyFormat {
  static constexpr Layout kLayout = {2, 3.f, Slabs};
  using Dequantiser = PlaneDequantiser<false>;
};

// Behind the last format that a kernel knows: the host launches it over pages of no other one.
// Attention is told that this is never reached, which costs it nothing.
#ifdef EBB_EMULATED
#define EBB_NO_SUCH_FORMAT() emulator::fail("a kernel does not know a page's format")
#else
#define EBB_NO_SUCH_FORMAT() __builtin_unreachable()
#endif
__device__ __forceinline__ void no_such_format() {
#ifdef EBB_EMULATED
  EBB_NO_SUCH_FORMAT();
#else
  __trap();
#endif
}

}  // namespace ebb
