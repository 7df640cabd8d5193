// A shrink as the host lists it.
#pragma once
#include <cstdint>

namespace ebb {

struct ShrinkJob {
  uint32_t from, to;        // schedule positions
  uint32_t source, target;  // first frames, into KvPool::frames
};
static_assert(sizeof(ShrinkJob) == 16);

// What a shrink that has not failed reports.
constexpr unsigned long long kNoFailure = ~0ull;

}  // namespace ebb
