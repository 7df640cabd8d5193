// See races.h.
#include "races.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <set>
#include <string>
#include <string_view>
#include <tuple>

#include "emulator.h"

// What kernels declare `__shared__`; the linker knows where.
extern "C" uint8_t __start_ebb_shared[], __stop_ebb_shared[];

namespace ebb::emulator::races {
namespace {

constexpr uint32_t kNobody = 0xffff, kMany = 0xfffe;
constexpr size_t kTold = 8;  // races that are printed

// A byte: who wrote it last and when; who has read it since, or which of `readers` lists them; and
// where.
struct Cell {
  uint32_t writer, written, reader, read;
  const void *write_at, *read_at;
};

bool instrumented;
const char* kernel;
const uint8_t* shared;
uint32_t shared_bytes, threads;
std::vector<Clock> clocks;
std::vector<Cell> cells;
std::vector<Clock> readers;  // of bytes that several have read: when each did
std::vector<uint32_t> unused;
const Clock* behalf;
uint32_t behalf_of;
std::set<std::tuple<const void*, const void*, const char*>> found;

void access(const void* address, uint32_t bytes, bool writes, const void* from) {
  const uint8_t* const at = static_cast<const uint8_t*>(address);
  const bool is_declared = at >= __start_ebb_shared && at < __stop_ebb_shared;
  if (!is_declared && (at < shared || at >= shared + shared_bytes)) return;
  Cell* const first = &cells[is_declared ? shared_bytes + (at - __start_ebb_shared) : at - shared];
  const uint32_t thread = behalf ? behalf_of : current_thread();
  const Clock& now = behalf ? *behalf : clocks[thread];
  for (uint32_t i = 0; i < bytes; i++) {
    Cell& cell = first[i];
    if (cell.writer != kNobody && cell.writer != thread && cell.written > now[cell.writer])
      found.emplace(from, cell.write_at,
                    writes ? "writes what is written" : "reads what is written");
    if (!writes) {
      if (cell.reader == kMany) {
        readers[cell.read][thread] = now[thread];
      } else if (cell.reader == kNobody || cell.reader == thread || cell.read <= now[cell.reader]) {
        cell.reader = thread, cell.read = now[thread];
      } else {
        if (unused.empty())
          unused.push_back(static_cast<uint32_t>(readers.size())), readers.emplace_back();
        const uint32_t list = unused.back();
        unused.pop_back();
        readers[list].assign(threads, 0);
        readers[list][cell.reader] = cell.read;
        readers[list][thread] = now[thread];
        cell.reader = kMany, cell.read = list;
      }
      cell.read_at = from;
      continue;
    }
    if (cell.reader == kMany) {
      const Clock& list = readers[cell.read];
      for (uint32_t t = 0; t < threads; t++)
        if (t != thread && list[t] > now[t])
          found.emplace(from, cell.read_at, "writes what is read");
      unused.push_back(cell.read);
    } else if (cell.reader != kNobody && cell.reader != thread && cell.read > now[cell.reader]) {
      found.emplace(from, cell.read_at, "writes what is read");
    }
    cell = {thread, now[thread], kNobody, 0, from, nullptr};
  }
}

// The lines of code of an access, those that called it behind those that are inlined there.
std::string place(const void* at) {
  Dl_info info;
  if (!at || !dladdr(at, &info)) return "    the emulator\n";
  char line[512];
  const size_t offset = static_cast<const char*>(at) - static_cast<const char*>(info.dli_fbase) - 1;
  snprintf(line, sizeof(line), "addr2line -sipfC -e '%s' 0x%zx", info.dli_fname, offset);
  std::string text;
  FILE* const output = popen(line, "r");
  while (output && fgets(line, sizeof(line), output)) {
    const std::string_view of = line;
    if (of.find("std::") == of.npos) text.append("    ").append(of);
  }
  if (output) pclose(output);
  return text.empty() ? "    an unknown place\n" : text;
}

}  // namespace

void join(Clock& to, const Clock& from) {
  if (from.empty()) return;
  if (to.empty()) to.assign(threads, 0);
  for (uint32_t i = 0; i < threads; i++) to[i] = std::max(to[i], from[i]);
}

bool is_on() { return instrumented; }

void begin(const char* name, uint32_t count, const uint8_t* memory, uint32_t bytes) {
  if (!instrumented) return;
  kernel = name, threads = count, shared = memory, shared_bytes = bytes;
  clocks.assign(count, Clock(count, 0));
  for (uint32_t t = 0; t < count; t++) clocks[t][t] = 1;
  cells.assign(bytes + (__stop_ebb_shared - __start_ebb_shared),
               {kNobody, 0, kNobody, 0, nullptr, nullptr});
  unused.clear();
  readers.clear();
}

void release(uint32_t thread, Clock& to) {
  if (!instrumented) return;
  join(to, clocks[thread]);
  clocks[thread][thread]++;
}

void publish(uint32_t thread, Clock& to) {
  to.clear();
  release(thread, to);
}

void acquire(uint32_t thread, const Clock& from) {
  if (instrumented) join(clocks[thread], from);
}

void meet(uint32_t first, uint32_t count) {
  if (!instrumented) return;
  Clock all;
  for (uint32_t t = first; t < first + count; t++) join(all, clocks[t]);
  for (uint32_t t = first; t < first + count; t++) {
    clocks[t] = all;
    clocks[t][t]++;
  }
}

Clock clock_of(uint32_t thread) {
  if (!instrumented) return {};
  const Clock now = clocks[thread];
  clocks[thread][thread]++;
  return now;
}

void on_behalf(uint32_t thread, const Clock* then) {
  if (instrumented) behalf_of = thread, behalf = then;
}

void write(const uint8_t* at, uint32_t bytes) {
  if (instrumented) access(at, bytes, true, nullptr);
}

void end() {
  if (found.empty()) return;
  std::set<std::string> told;
  for (const auto& [one, other, what] : found) {
    const std::string text = std::string("a thread ") + what +
                             " by another, with nothing between them:\n" + place(one) + "  and\n" +
                             place(other);
    if (told.insert(text).second) fprintf(stderr, "CUDA emulator: %s: %s", kernel, text.c_str());
    if (told.size() == kTold) break;
  }
  fail("races");
}

}  // namespace ebb::emulator::races

// What code compiled with -fsanitize=thread calls.
using ebb::emulator::races::access;
extern "C" {
void __tsan_init() { ebb::emulator::races::instrumented = true; }
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void**, void*) {}
void __tsan_vptr_read(void**) {}
#define EBB_ACCESS(BYTES)                                                                      \
  void __tsan_read##BYTES(void* at) { access(at, BYTES, false, __builtin_return_address(0)); } \
  void __tsan_write##BYTES(void* at) { access(at, BYTES, true, __builtin_return_address(0)); } \
  void __tsan_unaligned_read##BYTES(void* at) {                                                \
    access(at, BYTES, false, __builtin_return_address(0));                                     \
  }                                                                                            \
  void __tsan_unaligned_write##BYTES(void* at) {                                               \
    access(at, BYTES, true, __builtin_return_address(0));                                      \
  }
EBB_ACCESS(1)
EBB_ACCESS(2)
EBB_ACCESS(4)
EBB_ACCESS(8)
EBB_ACCESS(16)
void* __tsan_memset(void* to, int value, unsigned long bytes) {
  access(to, bytes, true, __builtin_return_address(0));
  return memset(to, value, bytes);
}
void* __tsan_memmove(void* to, const void* from, unsigned long bytes) {
  access(from, bytes, false, __builtin_return_address(0));
  access(to, bytes, true, __builtin_return_address(0));
  return memmove(to, from, bytes);
}
void* __tsan_memcpy(void* to, const void* from, unsigned long bytes) {
  return __tsan_memmove(to, from, bytes);
}
void __tsan_read_range(void* at, unsigned long bytes) {
  access(at, bytes, false, __builtin_return_address(0));
}
void __tsan_write_range(void* at, unsigned long bytes) {
  access(at, bytes, true, __builtin_return_address(0));
}
}
