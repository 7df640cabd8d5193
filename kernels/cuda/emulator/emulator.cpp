// Fibers, barriers and shared memory of the emulator. See emulator.h.
#include "emulator.h"

#include <sys/mman.h>
#include <ucontext.h>

#include <cstdio>
#include <cstdlib>
#include <unordered_map>
#include <vector>

#include "races.h"

EmulatedIndex threadIdx, blockIdx, blockDim, gridDim;

namespace ebb::emulator {
namespace {

constexpr size_t kStackBytes = 128 << 10;
constexpr uint32_t kThreadsMax = 1024, kSharedMax = 227 << 10;
// Rounds without a thread getting anywhere after which there is a deadlock.
constexpr int kPatience = 10000;

struct Copy {
  uint32_t dst;
  const void* src;
  uint32_t bytes;
};

struct Fiber {
  void* stack_pointer;
  ucontext_t context;
  bool alive;
  std::vector<std::vector<Copy>> groups;  // committed, oldest first
  std::vector<Copy> open;
};

struct Warp {
  const char* operation;
  void* arguments[32];
  uint32_t arrived;
  uint64_t generation;
  // matrix products committed, oldest first
  std::vector<std::vector<std::function<void()>>> groups;
  std::vector<std::function<void()>> open;
};

struct NamedBarrier {
  uint32_t arrived, threads;
  uint64_t generation;
  races::Clock now, ended;  // of those who have arrived; of those whom the last round waited for
};

struct Barrier {
  uint32_t arrivals, pending;
  int64_t bytes;
  uint32_t parity;  // of the phase that has not ended
  races::Clock now, ended[2];
};

struct TensorCopy {
  uint32_t barrier, bytes, thread;
  races::Clock issued;
  std::function<void()> perform;
};

const Kernel* kernels;
uint8_t* stacks;
alignas(1024) uint8_t shared[kSharedMax];
uint32_t shared_bytes;
std::vector<Fiber> fibers;
std::vector<Warp> warps;
uint32_t current, alive, barrier_arrived;
uint64_t barrier_generation, progress;
bool copies_early;
std::unordered_map<uint32_t, Barrier> barriers;
std::unordered_map<uint32_t, races::Clock> turns;
std::vector<TensorCopy> tensor_copies;  // under way
NamedBarrier named_barriers[16];
enum { kEarly, kLate, kRandom } landing;
uint32_t launches;
uint64_t random_state = 1;
const Kernel* running;
int running_phase;
const void* running_params;

uint64_t random() {
  random_state ^= random_state << 13;
  random_state ^= random_state >> 7;
  return random_state ^= random_state << 17;
}

#if defined(__x86_64__)
// Saves the callee-saved registers and the stack pointer, and takes up others.
extern "C" void ebb_switch(void** save, void* load);
asm(R"(
.text
.globl ebb_switch
.hidden ebb_switch
ebb_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
)");
void* scheduler_stack;
void to_scheduler() { ebb_switch(&fibers[current].stack_pointer, scheduler_stack); }
void to_fiber(uint32_t i) { ebb_switch(&scheduler_stack, fibers[i].stack_pointer); }
#else
ucontext_t scheduler_context;
void to_scheduler() { swapcontext(&fibers[current].context, &scheduler_context); }
void to_fiber(uint32_t i) { swapcontext(&scheduler_context, &fibers[i].context); }
#endif

void perform(const Copy& c) {
  uint8_t* to = shared_at(c.dst, 16);
  memset(to, 0, 16);
  memcpy(to, c.src, c.bytes);
}

Barrier& barrier_at(uint32_t address) {
  const auto b = barriers.find(address);
  if (b == barriers.end()) fail("there is no barrier at that shared address");
  return b->second;
}

void end_phase_if_complete(Barrier& b) {
  if (b.pending > 0 || b.bytes != 0) return;
  b.pending = b.arrivals;
  b.ended[b.parity] = std::move(b.now);
  b.now.clear();
  b.parity ^= 1;
  progress++;
}

void land(const TensorCopy& copy) {
  races::on_behalf(copy.thread, &copy.issued);
  copy.perform();
  races::on_behalf(copy.thread, nullptr);
  Barrier& b = barrier_at(copy.barrier);
  races::join(b.now, copy.issued);
  b.bytes -= copy.bytes;
  progress++;
  end_phase_if_complete(b);
}

void land_one() {
  if (tensor_copies.empty()) return;
  std::swap(tensor_copies[random() % tensor_copies.size()], tensor_copies.back());
  const TensorCopy copy = std::move(tensor_copies.back());
  tensor_copies.pop_back();
  land(copy);
}

// Threads that have returned are not waited for.
void release_barrier_if_all_arrived() {
  if (barrier_arrived < alive || barrier_arrived == 0) return;
  barrier_arrived = 0;
  races::meet(0, static_cast<uint32_t>(warps.size()) * 32);
  barrier_generation++;
  progress++;
}

void enter() {
  running->body(running_params);
  Fiber& f = fibers[current];
  for (const auto& group : f.groups)
    for (const Copy& c : group) perform(c);
  f.alive = false;
  alive--;
  progress++;
  release_barrier_if_all_arrived();
  for (;;) to_scheduler();
}

void start(uint32_t i) {
  Fiber& f = fibers[i];
  f.alive = true;
  f.groups.clear();
  f.open.clear();
  uint8_t* top = stacks + (i + 1) * kStackBytes;
#if defined(__x86_64__)
  // where a call would have left it: 8 bytes off a multiple of 16
  void** sp = reinterpret_cast<void**>(top) - 1;
  *--sp = reinterpret_cast<void*>(&enter);
  for (int r = 0; r < 6; r++) *--sp = nullptr;
  f.stack_pointer = sp;
#else
  getcontext(&f.context);
  f.context.uc_stack.ss_sp = stacks + i * kStackBytes;
  f.context.uc_stack.ss_size = kStackBytes;
  f.context.uc_link = nullptr;
  makecontext(&f.context, &enter, 0);
  (void)top;
#endif
}

void run_cta(uint32_t threads) {
  memset(shared, 0xff, shared_bytes);
  warps.assign(threads / 32, Warp{});
  barriers.clear();
  turns.clear();
  for (NamedBarrier& b : named_barriers) b = {};
  races::begin(running->name, threads, shared, shared_bytes);
  alive = threads;
  barrier_arrived = 0;
  for (uint32_t i = 0; i < threads; i++) start(i);
  int idle = 0;
  while (alive > 0) {
    const uint64_t before = progress;
    for (uint32_t k = 0; k < threads / 32; k++) {
      const uint32_t warp = random() % (threads / 32);
      for (uint32_t lane = 0; lane < 32; lane++) {
        current = warp * 32 + lane;
        if (!fibers[current].alive) continue;
        threadIdx = {current, 0, 0};
        to_fiber(current);
      }
    }
    // Late: when nothing else moves.
    if (progress == before || (landing == kRandom && random() % 2)) land_one();
    idle = progress == before ? idle + 1 : 0;
    if (idle > kPatience) fail("deadlock: threads wait at a barrier that the others do not reach");
  }
  if (!tensor_copies.empty()) fail("a CTA ends before the copies into its shared memory");
  for (const Warp& w : warps)
    if (!w.groups.empty() || !w.open.empty()) fail("a CTA ends before its matrix products");
  races::end();
}

}  // namespace

Kernel::Kernel(const char* name, size_t param_bytes, uint32_t threads, bool phased,
               void (*body)(const void*))
    : name(name),
      param_bytes(param_bytes),
      threads(threads),
      phased(phased),
      body(body),
      next(kernels) {
  kernels = this;
}

void fail(const char* what) {
  fprintf(stderr, "CUDA emulator: %s: thread %u of CTA (%u, %u): %s\n",
          running ? running->name : "?", current, blockIdx.x, blockIdx.y, what);
  abort();
}

int phase() { return running_phase; }

uint8_t* dynamic_shared() { return shared; }

uint8_t* shared_at(uint32_t address, uint32_t bytes) {
  if (address % bytes != 0) fail("a shared address is not aligned");
  if (address + bytes > shared_bytes)
    fail("a shared address is beyond the shared memory of the launch");
  return shared + address;
}

uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(static_cast<const uint8_t*>(p) - shared);
}

void sync_threads() {
  const uint64_t generation = barrier_generation;
  barrier_arrived++;
  release_barrier_if_all_arrived();
  while (barrier_generation == generation) to_scheduler();
}

void warp_wide(const char* operation, void* argument, void (*perform)(void* const*)) {
  Warp& w = warps[current / 32];
  const uint64_t generation = w.generation;
  if (w.arrived == 0) w.operation = operation;
  if (strcmp(w.operation, operation) != 0)
    fail("lanes of a warp are at different warp-wide operations");
  w.arguments[current % 32] = argument;
  if (++w.arrived == 32) {
    perform(w.arguments);
    // What a warp waits for of its matrix products has been read for all of its lanes.
    if (strcmp(operation, "__syncwarp") == 0 || strcmp(operation, "wgmma.wait_group") == 0)
      races::meet(current / 32 * 32, 32);
    w.arrived = 0;
    w.generation++;
    progress++;
  }
  while (w.generation == generation) to_scheduler();
}

void copy_issue(uint32_t dst, const void* src, uint32_t bytes) {
  if (bytes > 16 || reinterpret_cast<uintptr_t>(src) % 16 != 0)
    fail("an asynchronous copy is not of 16 aligned bytes");
  const Copy copy{dst, src, bytes};
  races::write(shared_at(dst, 16), 16);
  if (copies_early)
    perform(copy);
  else
    fibers[current].open.push_back(copy);
}

void copy_commit() {
  Fiber& f = fibers[current];
  f.groups.push_back(std::move(f.open));
  f.open.clear();
}

void copy_wait(uint32_t pending) {
  Fiber& f = fibers[current];
  while (f.groups.size() > pending) {
    for (const Copy& c : f.groups.front()) perform(c);
    f.groups.erase(f.groups.begin());
  }
}

void named_barrier(uint32_t id, uint32_t threads, bool wait) {
  NamedBarrier& b = named_barriers[id % 16];
  if (b.arrived == 0) b.threads = threads;
  if (id == 0 || id > 15 || b.threads != threads)
    fail("a named barrier is 1 to 15 and takes the same number of threads from all");
  const uint64_t generation = b.generation;
  progress++;
  races::release(current, b.now);
  if (++b.arrived == threads) {
    b.ended = std::move(b.now);
    b.now.clear();
    b.arrived = 0;
    b.generation++;
  }
  while (wait && b.generation == generation) to_scheduler();
  if (wait) races::acquire(current, b.ended);
}

void matrix_issue(std::function<void()> perform) {
  if (copies_early)
    perform();
  else
    warps[current / 32].open.push_back(std::move(perform));
}

void matrix_commit() {
  warp_wide("wgmma.commit_group", nullptr, [](void* const*) {
    Warp& w = warps[current / 32];
    w.groups.push_back(std::move(w.open));
    w.open.clear();
  });
}

void matrix_wait(uint32_t pending) {
  uint32_t mine = pending;
  warp_wide("wgmma.wait_group", &mine, [](void* const* all) {
    Warp& w = warps[current / 32];
    while (w.groups.size() > *static_cast<uint32_t*>(all[0])) {
      for (const auto& perform : w.groups.front()) perform();
      w.groups.erase(w.groups.begin());
    }
  });
}

void yield() { to_scheduler(); }

void barrier_init(uint32_t address, uint32_t arrivals) {
  shared_at(address, 8);
  barriers[address] = {arrivals, arrivals, 0, 0, {}, {}};
}

void barrier_arrive(uint32_t address, uint32_t expected_bytes) {
  Barrier& b = barrier_at(address);
  if (b.pending == 0) fail("more arrivals at a barrier than it was made for");
  races::release(current, b.now);
  b.bytes += expected_bytes;
  b.pending--;
  progress++;
  end_phase_if_complete(b);
}

bool barrier_passed(uint32_t address, uint32_t parity) {
  const Barrier& b = barrier_at(address);
  if (b.parity == parity) return false;
  races::acquire(current, b.ended[parity]);
  return true;
}

uint32_t current_thread() { return current; }

uint32_t turn_load(uint32_t address) {
  uint32_t now;
  memcpy(&now, shared_at(address, 4), 4);
  if (races::is_on()) races::acquire(current, turns[address]);
  return now;
}

uint32_t turn_add(uint32_t address, uint32_t value) {
  const uint32_t old = turn_load(address), now = old + value;
  memcpy(shared_at(address, 4), &now, 4);
  if (races::is_on()) races::release(current, turns[address]);
  return old;
}

void turn_set(uint32_t address, uint32_t value) {
  memcpy(shared_at(address, 4), &value, 4);
  if (races::is_on()) races::publish(current, turns[address]);
}

void tensor_copy_issue(uint32_t barrier, uint32_t bytes, std::function<void()> perform) {
  TensorCopy copy{barrier, bytes, current, races::clock_of(current), std::move(perform)};
  if (landing == kEarly)
    land(copy);
  else
    tensor_copies.push_back(std::move(copy));
}

}  // namespace ebb::emulator

// The kernel of that name, or null; its parameter bytes and threads.
extern "C" const void* ebb_emulator_find(const char* name, size_t* param_bytes, uint32_t* threads) {
  using namespace ebb::emulator;
  for (const Kernel* k = kernels; k; k = k->next) {
    if (strcmp(k->name, name) == 0) {
      *param_bytes = k->param_bytes;
      *threads = k->threads;
      return k;
    }
  }
  return nullptr;
}

// Runs a kernel to its end. One launch at a time.
extern "C" void ebb_emulator_launch(const void* kernel, uint32_t grid_x, uint32_t grid_y,
                                    uint32_t threads, uint32_t dynamic_shared_bytes,
                                    const void* params) {
  using namespace ebb::emulator;
  running = static_cast<const Kernel*>(kernel);
  running_params = params;
  shared_bytes = dynamic_shared_bytes;
  blockDim = {threads, 1, 1};
  gridDim = {grid_x, grid_y, 1};
  blockIdx = {0, 0, 0};
  if (threads != running->threads || threads % 32 != 0 || threads > kThreadsMax)
    fail("a kernel is launched with a number of threads it was not made for");
  if (dynamic_shared_bytes > kSharedMax) fail("more shared memory than a multiprocessor has");
  if (!stacks) {
    void* memory = mmap(nullptr, kThreadsMax * kStackBytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) fail("no memory for the threads' stacks");
    stacks = static_cast<uint8_t*>(memory);
    fibers.resize(kThreadsMax);
  }
  copies_early = !copies_early;
  const bool backwards = launches / 2 % 2 && !running->phased;
  landing = static_cast<decltype(landing)>(launches++ % 3);
  const uint64_t ctas = static_cast<uint64_t>(grid_x) * grid_y;
  const uint64_t phases = running->phased ? 2 : 1;
  for (uint64_t i = 0; i < phases * ctas; i++) {
    running_phase = static_cast<int>(i / ctas);
    const uint64_t cta = backwards ? ctas - 1 - i : i % ctas;
    blockIdx = {static_cast<uint32_t>(cta % grid_x), static_cast<uint32_t>(cta / grid_x), 0};
    run_cta(threads);
  }
}
