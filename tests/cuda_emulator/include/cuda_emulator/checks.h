// Accesses that a GPU refuses, and what -fsanitize=alignment,bounds calls: the launch fails, and
// says where.
#ifndef TVM_SCHED_TESTS_CUDA_EMULATOR_CHECKS_H_
#define TVM_SCHED_TESTS_CUDA_EMULATOR_CHECKS_H_

#include "cuda_emulator/image.h"

namespace cuda_emulator {

/// The address of a vector; cuda_source.py puts it in place of casts.
template <class T>
T* Aligned(int line, const volatile void* address) {
  const auto number = reinterpret_cast<std::uintptr_t>(address);
  if (__builtin_expect(number % alignof(T) != 0, false)) {
    char text[128];
    std::snprintf(text, sizeof(text),
                  "line %d: a vector at address %#zx, which is no multiple of %zu", line,
                  static_cast<std::size_t>(number), alignof(T));
    TheDevice().fault(kMisaligned, text);
  }
  return reinterpret_cast<T*>(number);
}

}  // namespace cuda_emulator

namespace cuda_emulator::checks {

struct Place {
  const char* file;
  unsigned line, column;
};
struct Type {
  unsigned short kind, info;
  char name[1];
};
struct Access {  // TypeMismatchData of libubsan
  Place place;
  const Type* type;
  unsigned char log_alignment, kind;
};
struct Indexing {  // OutOfBoundsData
  Place place;
  const Type *array, *index;
};

}  // namespace cuda_emulator::checks

// Only the compiler calls these, after it has thrown away what nobody calls; so they say "used".
extern "C" {

[[noreturn, gnu::used]] void __ubsan_handle_type_mismatch_v1_abort(
    cuda_emulator::checks::Access* access, std::uintptr_t address) {
  char text[256];
  std::snprintf(text, sizeof(text),
                "line %u: an access to %s at address %#zx, which is no multiple of %u",
                access->place.line, access->type->name, static_cast<std::size_t>(address),
                1u << access->log_alignment);
  cuda_emulator::TheDevice().fault(cuda_emulator::kMisaligned, text);
}

[[noreturn, gnu::used]] void __ubsan_handle_out_of_bounds_abort(
    cuda_emulator::checks::Indexing* indexing, std::uintptr_t index) {
  char text[256];
  std::snprintf(text, sizeof(text), "line %u: element %lld of %s", indexing->place.line,
                static_cast<long long>(index), indexing->array->name);
  cuda_emulator::TheDevice().fault(cuda_emulator::kIllegalAddress, text);
}
}

#endif  // TVM_SCHED_TESTS_CUDA_EMULATOR_CHECKS_H_
