#include "fibers.h"

#include <sys/mman.h>

#include <new>

#ifdef CUDA_EMULATOR_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

namespace cuda_emulator {

namespace {

constexpr std::size_t kPage = 4096;

void Unmap(char* begin, char* end) {
  if (end > begin) munmap(begin, static_cast<std::size_t>(end - begin));
}

}  // namespace

Stack::Stack() {
  constexpr int kFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  void* mapped = mmap(nullptr, 2 * kStackBytes, PROT_READ | PROT_WRITE, kFlags, -1, 0);
  if (mapped == MAP_FAILED) throw std::bad_alloc();
  auto* begin = static_cast<char*>(mapped);
  const auto address = reinterpret_cast<std::uintptr_t>(begin);
  char* base = begin + (-address & (kStackBytes - 1));
  Unmap(begin, base);
  Unmap(base + kStackBytes, begin + 2 * kStackBytes);
  mprotect(base + kPage, kPage, PROT_NONE);
  base_ = base;
}

Stack::~Stack() { munmap(base_, kStackBytes); }

char* Stack::bottom() const { return static_cast<char*>(base_) + 2 * kPage; }

#if defined(__x86_64__)

// Keeps what a function of the host keeps: rbx, rbp, r12 to r15. Rounding modes are never changed.
asm(R"(
.text
.p2align 4
.hidden cuda_emulator_switch
.globl cuda_emulator_switch
.type cuda_emulator_switch,@function
cuda_emulator_switch:
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
.size cuda_emulator_switch,.-cuda_emulator_switch
)");
constexpr int kSaved = 6, kReturn = 6, kWords = 8;

#elif defined(__aarch64__)

// Keeps x19 to x30 and d8 to d15.
asm(R"(
.text
.p2align 4
.hidden cuda_emulator_switch
.globl cuda_emulator_switch
.type cuda_emulator_switch,%function
cuda_emulator_switch:
  sub sp, sp, #160
  stp x19, x20, [sp, #0]
  stp x21, x22, [sp, #16]
  stp x23, x24, [sp, #32]
  stp x25, x26, [sp, #48]
  stp x27, x28, [sp, #64]
  stp x29, x30, [sp, #80]
  stp d8, d9, [sp, #96]
  stp d10, d11, [sp, #112]
  stp d12, d13, [sp, #128]
  stp d14, d15, [sp, #144]
  mov x9, sp
  str x9, [x0]
  mov sp, x1
  ldp x19, x20, [sp, #0]
  ldp x21, x22, [sp, #16]
  ldp x23, x24, [sp, #32]
  ldp x25, x26, [sp, #48]
  ldp x27, x28, [sp, #64]
  ldp x29, x30, [sp, #80]
  ldp d8, d9, [sp, #96]
  ldp d10, d11, [sp, #112]
  ldp d12, d13, [sp, #128]
  ldp d14, d15, [sp, #144]
  add sp, sp, #160
  ret
.size cuda_emulator_switch,.-cuda_emulator_switch
)");
constexpr int kSaved = 20, kReturn = 11, kWords = 20;

#endif

#ifdef CUDA_EMULATOR_UCONTEXT

void Prepare(Context& context, const Stack& stack, void (*entry)(), unsigned color) {
  getcontext(&context.context);
  context.context.uc_stack.ss_sp = stack.bottom();
  context.context.uc_stack.ss_size =
      static_cast<std::size_t>(stack.top() - stack.bottom()) - color % 64 * 64;
  context.context.uc_link = nullptr;
  makecontext(&context.context, entry, 0);
}

namespace {
void SwitchStacks(Context& from, Context& to) { swapcontext(&from.context, &to.context); }
}  // namespace

#else

extern "C" void cuda_emulator_switch(void** from, void* to);

void Prepare(Context& context, const Stack& stack, void (*entry)(), unsigned color) {
  auto** words = reinterpret_cast<void**>(stack.top() - 64 - color % 64 * 64) - kWords;
  for (int i = 0; i < kSaved; ++i) words[i] = nullptr;
  words[kReturn] = reinterpret_cast<void*>(entry);
  context.stack_pointer = words;
#ifdef CUDA_EMULATOR_ASAN
  context.fake_stack = nullptr;
  context.bottom = stack.bottom();
  context.bytes = static_cast<std::size_t>(stack.top() - stack.bottom());
  __asan_unpoison_memory_region(context.bottom, context.bytes);
#endif
}

namespace {
void SwitchStacks(Context& from, Context& to) {
  cuda_emulator_switch(&from.stack_pointer, to.stack_pointer);
}
}  // namespace

#endif

#ifdef CUDA_EMULATOR_ASAN

void Switch(Context& from, Context& to, bool ends) {
  __sanitizer_start_switch_fiber(ends ? nullptr : &from.fake_stack, to.bottom, to.bytes);
  SwitchStacks(from, to);
  __sanitizer_finish_switch_fiber(from.fake_stack, nullptr, nullptr);
}

void Entered(Context& from) { __sanitizer_finish_switch_fiber(nullptr, &from.bottom, &from.bytes); }

#else

void Switch(Context& from, Context& to, bool) { SwitchStacks(from, to); }

void Entered(Context&) {}

#endif

}  // namespace cuda_emulator
