// Threads of a block as fibers: each has a stack, and one thread of the host switches among them.
#ifndef TVM_SCHED_TESTS_CUDA_EMULATOR_FIBERS_H_
#define TVM_SCHED_TESTS_CUDA_EMULATOR_FIBERS_H_

#include <cstddef>
#include <vector>

#include "cuda_emulator/image.h"

#if defined(__SANITIZE_ADDRESS__)
#define CUDA_EMULATOR_ASAN 1
#endif

#if !defined(__x86_64__) && !defined(__aarch64__)
#define CUDA_EMULATOR_UCONTEXT 1
#include <ucontext.h>
#endif

namespace cuda_emulator {

/// Memory for one fiber: `kStackBytes` at a multiple of that, the lowest page for its `Position`,
/// the next one not accessible.
class Stack {
 public:
  Stack();
  ~Stack();
  Stack(const Stack&) = delete;
  Stack& operator=(const Stack&) = delete;

  Position& position() const { return *static_cast<Position*>(base_); }
  char* bottom() const;
  char* top() const { return static_cast<char*>(base_) + kStackBytes; }

 private:
  void* base_;
};

/// Where a fiber or the scheduler stopped.
struct Context {
#ifdef CUDA_EMULATOR_UCONTEXT
  ucontext_t context;
#else
  void* stack_pointer = nullptr;
#endif
#ifdef CUDA_EMULATOR_ASAN
  void* fake_stack = nullptr;
  const void* bottom = nullptr;
  std::size_t bytes = 0;
#endif
};

/// `entry` shall begin on `stack` when it is switched to, and never return. `color` keeps stacks of
/// several fibers from the same lines of the cache.
void Prepare(Context& context, const Stack& stack, void (*entry)(), unsigned color);

/// Go on in `to`; returns when somebody switches to `from`. A context that ends says so.
void Switch(Context& from, Context& to, bool ends = false);

/// The first that a fiber calls.
void Entered(Context& from);

}  // namespace cuda_emulator

#endif  // TVM_SCHED_TESTS_CUDA_EMULATOR_FIBERS_H_
