// How the units of a streamed product are divided among CTAs.
#pragma once
#include <cstdint>

namespace ebb {

// The runs of units, `steps` to a tile.
struct StreamRuns {
  uint32_t parts, steps;  // a run is one of `parts` parts of a tile; or if 0
  uint32_t each, more;    // a run is `each` units, the first `more` runs are one longer

  __device__ __forceinline__ StreamRuns(uint32_t parts, uint32_t tiles, uint32_t steps,
                                        uint32_t runs)
      : parts(parts), steps(steps), each(tiles * steps / runs), more(tiles * steps % runs) {}
  __device__ __forceinline__ uint32_t begin(uint32_t run) const {
    return parts ? run / parts * steps + run % parts * steps / parts : run * each + min(run, more);
  }
  // Of runs of equal length.
  __device__ __forceinline__ uint32_t run_of(uint32_t unit) const {
    const uint32_t longer = more * (each + 1);
    return unit < longer ? unit / (each + 1) : more + (unit - longer) / each;
  }
};

}  // namespace ebb
