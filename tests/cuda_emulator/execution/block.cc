#include "block.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

#include "order.h"

namespace cuda_emulator {

namespace {

constexpr std::size_t kLargestStaticShared = 48 << 10;

enum class State { kNew, kReady, kAtBarrier, kExchanging, kAskingForActive, kEnded };

/// A copy into shared memory that was asked for.
struct Copy {
  void* to;
  const void* from;
  unsigned bytes, zeros;
};

struct Fiber {
  State state = State::kNew;
  Context context;
  Stack* stack = nullptr;  // until it ends
  int line = 0;            // where it waits
  unsigned mask = 0;
  Exchange exchange = nullptr;
  void* given = nullptr;
  std::deque<std::vector<Copy>> groups = {};  // of copies; the last one is not committed
};

struct SharedArray {
  std::size_t bytes = 0;
  void* memory = nullptr;
};

struct Freer {
  void operator()(void* memory) const { std::free(memory); }
};
using Memory = std::unique_ptr<void, Freer>;

Memory Allocate(std::size_t bytes, std::size_t alignment) {
  alignment = std::max(alignment, sizeof(void*));
#ifdef CUDA_EMULATOR_ASAN
  void* memory = nullptr;  // of this size exactly, so that what lies behind is found
  if (posix_memalign(&memory, alignment, bytes) != 0) throw std::bad_alloc();
  return Memory(memory);
#else
  return Memory(std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment));
#endif
}

/// A launch on one thread of the host.
class Runner {
 public:
  Runner(const Launch& launch, void** arguments)
      : launch_(launch),
        arguments_(arguments),
        random_(launch.seed),
        fibers_(std::size_t{launch.block.x} * launch.block.y * launch.block.z) {
    if (launch.dynamic_shared > 0) dynamic_ = Allocate(launch.dynamic_shared, 1024);
  }

  Fault RunAll();

  // What fibers call.
  void Wait(State state, int line, unsigned mask, Exchange exchange, void* given);
  unsigned Active(int line);
  void* Shared(int array, std::size_t bytes, std::size_t alignment);
  void* Dynamic() const { return dynamic_.get(); }
  void* SharedAt(unsigned address, unsigned bytes);
  void AddCopy(const Copy& copy);
  void CommitCopies() { fibers_[running_].groups.emplace_back(); }
  void WaitForCopies(unsigned newest);
  [[noreturn]] void Fail(int code, const std::string& text);
  static void Begin();

 private:
  void RunBlock();
  void RunWarp(unsigned warp);
  void Resume(unsigned number);
  bool Resolve(unsigned warp);
  bool ResolveExchange(unsigned warp, unsigned lane);
  bool ResolveActive(unsigned warp);
  void ReleaseBarrier();
  void Give(Fiber& fiber);
  unsigned First(unsigned warp) const { return warp * kLanes; }
  unsigned Last(unsigned warp) const {
    return std::min<unsigned>(First(warp) + kLanes, static_cast<unsigned>(fibers_.size()));
  }
  std::string Where(unsigned number) const;
  void Explain(unsigned number);

  const Launch& launch_;
  void** arguments_;
  Random random_;
  std::vector<Fiber> fibers_;
  Context scheduler_;
  unsigned running_ = 0;
  Index block_;
  // By number and bytes: a function template has an array for each size.
  std::map<std::pair<int, std::size_t>, SharedArray> shared_;  // that this block has asked for
  std::map<std::pair<int, std::size_t>, Memory> arrays_;       // of all blocks
  std::size_t shared_bytes_ = 0;
  Memory dynamic_;
  Fault fault_;
};

thread_local Runner* runner = nullptr;

/// Stacks that no fiber uses just now, kept for later launches of all threads: each stack is two
/// mappings, of which Linux allows a process 65,530, and models have many streams.
class Stacks {
 public:
  static Stack* Take() {
    Stacks& all = All();
    const std::lock_guard lock(all.mutex_);
    if (all.kept_.empty()) return new Stack;
    Stack* taken = all.kept_.back();
    all.kept_.pop_back();
    return taken;
  }

  static void Give(Stack* stack) {
    Stacks& all = All();
    const std::lock_guard lock(all.mutex_);
    all.kept_.push_back(stack);
  }

 private:
  static Stacks& All() {
    static Stacks& all = *new Stacks;  // threads of streams may outlive static objects
    return all;
  }

  std::mutex mutex_;
  std::vector<Stack*> kept_;
};

Fault Runner::RunAll() {
  Runner* const outer = std::exchange(runner, this);
  const Index& grid = launch_.grid;
  const std::uint64_t count = std::uint64_t{grid.x} * grid.y * grid.z;
  Order order(count, random_.Next());
  for (std::uint64_t n = 0; n < count && fault_.code == 0; ++n) {
    const std::uint64_t block = order.Next();
    block_ = {static_cast<unsigned>(block % grid.x), static_cast<unsigned>(block / grid.x % grid.y),
              static_cast<unsigned>(block / grid.x / grid.y)};
    RunBlock();
  }
  runner = outer;
  return fault_;
}

void Runner::RunBlock() {
  shared_.clear();
  shared_bytes_ = 0;
  if (dynamic_) std::memset(dynamic_.get(), 0xFF, launch_.dynamic_shared);
  for (Fiber& fiber : fibers_) fiber.state = State::kNew;
  const auto warps = static_cast<unsigned>((fibers_.size() + kLanes - 1) / kLanes);
  for (bool ended = false; !ended && fault_.code == 0;) {
    Order order(warps, random_.Next());
    for (unsigned w = 0; w < warps && fault_.code == 0; ++w) {
      RunWarp(static_cast<unsigned>(order.Next()));
    }
    if (fault_.code == 0) ReleaseBarrier();
    ended = fibers_.front().state == State::kEnded;
  }
  for (Fiber& fiber : fibers_) Give(fiber);
}

/// Until all lanes have ended or wait for the whole block.
void Runner::RunWarp(unsigned warp) {
  const unsigned lanes = Last(warp) - First(warp);
  do {
    Order order(lanes, random_.Next());
    for (unsigned n = 0; n < lanes && fault_.code == 0; ++n) {
      Resume(First(warp) + static_cast<unsigned>(order.Next()));
    }
  } while (fault_.code == 0 && Resolve(warp));
}

void Runner::Resume(unsigned number) {
  Fiber& fiber = fibers_[number];
  if (fiber.state != State::kNew && fiber.state != State::kReady) return;
  running_ = number;
  if (fiber.state == State::kNew) {
    fiber.groups.clear();
    fiber.stack = Stacks::Take();
    const Index& block = launch_.block;
    fiber.stack->position() = {
        {number % block.x, number / block.x % block.y, number / block.x / block.y},
        block_,
        block,
        launch_.grid,
        number % kLanes};
    Prepare(fiber.context, *fiber.stack, &Runner::Begin, number);
  }
  fiber.state = State::kReady;
  Switch(scheduler_, fiber.context);
  if (fiber.state == State::kEnded) Give(fiber);
}

void Runner::Begin() {
  Runner& mine = *runner;
  Entered(mine.scheduler_);
  mine.launch_.kernel->call(mine.arguments_);
  Fiber& fiber = mine.fibers_[mine.running_];
  fiber.state = State::kEnded;
  Switch(fiber.context, mine.scheduler_, true);
  std::abort();
}

void Runner::Give(Fiber& fiber) {
  if (fiber.stack != nullptr) Stacks::Give(std::exchange(fiber.stack, nullptr));
}

void Runner::Wait(State state, int line, unsigned mask, Exchange exchange, void* given) {
  Fiber& fiber = fibers_[running_];
  fiber.state = state;
  fiber.line = line;
  fiber.mask = mask;
  fiber.exchange = exchange;
  fiber.given = given;
  Switch(fiber.context, scheduler_);
}

unsigned Runner::Active(int line) {
  unsigned active = 0;
  Wait(State::kAskingForActive, line, 0, nullptr, &active);
  return active;
}

void* Runner::Shared(int array, std::size_t bytes, std::size_t alignment) {
  const std::pair key{array, bytes};
  auto [found, fresh] = shared_.try_emplace(key, SharedArray{bytes, nullptr});
  if (!fresh) return found->second.memory;
  shared_bytes_ += bytes;
  if (shared_bytes_ > kLargestStaticShared ||
      shared_bytes_ + launch_.dynamic_shared > launch_.largest_shared) {
    Fail(kLaunchFailed, std::to_string(shared_bytes_) + " bytes of static and " +
                            std::to_string(launch_.dynamic_shared) +
                            " of dynamic shared memory, and " +
                            std::to_string(launch_.largest_shared) + " are allowed");
  }
  Memory& memory = arrays_[key];
  if (!memory) memory = Allocate(bytes, std::max<std::size_t>(alignment, 16));
  std::memset(memory.get(), 0xFF, bytes);
  return found->second.memory = memory.get();
}

void* Runner::SharedAt(unsigned address, unsigned bytes) {
  const auto inside = [&](void* memory, std::size_t size) -> void* {
    const auto begin = reinterpret_cast<std::uintptr_t>(memory);
    const unsigned offset = address - static_cast<unsigned>(begin);
    return offset + std::size_t{bytes} <= size ? reinterpret_cast<void*>(begin + offset) : nullptr;
  };
  void* found = inside(dynamic_.get(), launch_.dynamic_shared);
  for (const auto& [number, array] : shared_) {
    if (found == nullptr) found = inside(array.memory, array.bytes);
  }
  if (found == nullptr)
    Fail(kIllegalAddress, "an address that is in no shared memory of the block");
  return found;
}

void Runner::AddCopy(const Copy& copy) {
  auto& groups = fibers_[running_].groups;
  if (groups.empty()) groups.emplace_back();
  groups.back().push_back(copy);
}

void Runner::WaitForCopies(unsigned newest) {
  auto& groups = fibers_[running_].groups;
  while (groups.size() > newest + 1) {
    for (const Copy& copy : groups.front()) {
      std::memcpy(copy.to, copy.from, copy.bytes);
      std::memset(static_cast<char*>(copy.to) + copy.bytes, 0, copy.zeros);
    }
    groups.pop_front();
  }
}

void Runner::Fail(int code, const std::string& text) {
  Explain(running_);
  fault_.code = code;
  fault_.text += ": " + text;
  Switch(fibers_[running_].context, scheduler_);
  std::abort();
}

/// Whether some lanes of a warp may go on.
bool Runner::Resolve(unsigned warp) {
  bool resolved = false;
  for (unsigned lane = First(warp); lane < Last(warp) && fault_.code == 0; ++lane) {
    if (fibers_[lane].state == State::kExchanging) resolved |= ResolveExchange(warp, lane);
  }
  return fault_.code == 0 && (resolved || ResolveActive(warp));
}

bool Runner::ResolveExchange(unsigned warp, unsigned lane) {
  const Fiber& asking = fibers_[lane];
  const auto refuse = [&](const std::string& text) {
    Explain(lane);
    fault_.code = kLaunchFailed;
    fault_.text += ": " + text;
    return false;
  };
  if ((asking.mask >> (lane % kLanes) & 1) == 0) return refuse("its mask leaves out the caller");
  void* given[kLanes] = {};
  for (unsigned other = First(warp); other < Last(warp); ++other) {
    if ((asking.mask >> (other % kLanes) & 1) == 0) continue;
    const Fiber& fiber = fibers_[other];
    if (fiber.state == State::kEnded) continue;
    if (fiber.state != State::kExchanging) return false;
    if (fiber.line != asking.line || fiber.exchange != asking.exchange) return false;
    if (fiber.mask != asking.mask) return refuse("lanes of a warp call it with different masks");
    given[other % kLanes] = fiber.given;
  }
  asking.exchange(given);
  for (unsigned other = First(warp); other < Last(warp); ++other) {
    if (given[other % kLanes] != nullptr) fibers_[other].state = State::kReady;
  }
  return true;
}

/// Lanes that ask for it together get each other.
bool Runner::ResolveActive(unsigned warp) {
  unsigned active = 0;
  int line = 0;
  for (unsigned lane = First(warp); lane < Last(warp); ++lane) {
    if (fibers_[lane].state != State::kAskingForActive) continue;
    if (active == 0) line = fibers_[lane].line;
    if (fibers_[lane].line == line) active |= 1u << lane % kLanes;
  }
  for (unsigned lane = First(warp); lane < Last(warp); ++lane) {
    if ((active >> (lane % kLanes) & 1) == 0) continue;
    *static_cast<unsigned*>(fibers_[lane].given) = active;
    fibers_[lane].state = State::kReady;
  }
  return active != 0;
}

/// All threads have come to one barrier, or all have ended; everything else is divergence.
void Runner::ReleaseBarrier() {
  const Fiber& first = fibers_.front();
  for (unsigned n = 0; n < fibers_.size(); ++n) {
    const Fiber& fiber = fibers_[n];
    const bool same = fiber.state == first.state && fiber.line == first.line;
    if (fiber.state == State::kEnded && first.state == State::kEnded) continue;
    if (same && fiber.state == State::kAtBarrier) continue;
    const unsigned waiting = fiber.state == State::kEnded ? 0 : n;
    Explain(waiting);
    fault_.code = kLaunchFailed;
    fault_.text += ", and never meets " + Where(waiting == n ? 0 : n) + ": divergence";
    return;
  }
  if (first.state == State::kEnded) return;
  for (Fiber& fiber : fibers_) fiber.state = State::kReady;
}

std::string Runner::Where(unsigned number) const {
  const Fiber& fiber = fibers_[number];
  const auto text = [](unsigned x, unsigned y, unsigned z) {
    return "(" + std::to_string(x) + ", " + std::to_string(y) + ", " + std::to_string(z) + ")";
  };
  const Index& block = launch_.block;
  const std::string what = fiber.state == State::kEnded             ? ", which has ended"
                           : fiber.state == State::kAtBarrier       ? " at the barrier in line "
                           : fiber.state == State::kExchanging      ? " at the exchange in line "
                           : fiber.state == State::kAskingForActive ? " at the mask in line "
                                                                    : "";
  const bool waits = !what.empty() && fiber.state != State::kEnded;
  return "thread " +
         text(number % block.x, number / block.x % block.y, number / block.x / block.y) +
         " of block " + text(block_.x, block_.y, block_.z) + what +
         (waits ? std::to_string(fiber.line) : "");
}

void Runner::Explain(unsigned number) {
  fault_.text = "kernel \"" + std::string(launch_.kernel->name) + "\", " + Where(number);
}

}  // namespace

const Device kDevice = {
    [](int line) { runner->Wait(State::kAtBarrier, line, 0, nullptr, nullptr); },
    [](int line, unsigned mask, Exchange exchange, void* given) {
      runner->Wait(State::kExchanging, line, mask, exchange, given);
    },
    [](int line) { return runner->Active(line); },
    [](int array, std::size_t bytes, std::size_t alignment) {
      return runner->Shared(array, bytes, alignment);
    },
    [] { return runner->Dynamic(); },
    [](unsigned address, unsigned bytes) { return runner->SharedAt(address, bytes); },
    [](void* to, const void* from, unsigned bytes, unsigned zeros) {
      runner->AddCopy({to, from, bytes, zeros});
    },
    [] { runner->CommitCopies(); },
    [](unsigned newest) { runner->WaitForCopies(newest); },
    [](int code, const char* text) { runner->Fail(code, text); },
};

Fault Run(const Launch& launch, void** arguments) { return Runner(launch, arguments).RunAll(); }

}  // namespace cuda_emulator
