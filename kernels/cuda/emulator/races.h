// Finds races in shared memory: accesses of two threads to a byte, one of them a write, that
// nothing orders. For kernels compiled with -fsanitize=thread (`EBB_EMULATOR_RACES`, see build.rs),
// whose every access calls into races.cpp; else nothing is done.
//
// Orders: __syncthreads, __syncwarp, named barriers, barriers that copies and threads arrive at,
// counters ("turns", common/ptx.cuh), each by vector clocks of all threads (Flanagan and Freund,
// FastTrack, PLDI 2009). Shuffles, votes and matrix operations order nothing, as the CUDA manual
// says. An asynchronous copy is a write of the thread that issued it, at the time when it did.
#pragma once
#include <cstdint>
#include <vector>

namespace ebb::emulator::races {

// Of each thread, how many of its periods are known to lie behind; empty: none of any.
using Clock = std::vector<uint32_t>;

bool is_on();
// A CTA begins.
void begin(const char* kernel, uint32_t threads, const uint8_t* shared, uint32_t bytes);
// What `thread` did lies before what is done after acquiring.
void release(uint32_t thread, Clock& to);
// The same, but what `to` held is forgotten.
void publish(uint32_t thread, Clock& to);
void acquire(uint32_t thread, const Clock& from);
void join(Clock& to, const Clock& from);
// Threads first, first + 1, ... have met.
void meet(uint32_t first, uint32_t count);
// A thread's clock, for what it has done on its behalf later; and whether that begins or, with
// null, ends.
Clock clock_of(uint32_t thread);
void on_behalf(uint32_t thread, const Clock* then);
// The running thread writes.
void write(const uint8_t* at, uint32_t bytes);
// A CTA ends: prints what was found; ends the process if anything was.
void end();

}  // namespace ebb::emulator::races
