#include "kernels/integers/functions.h"

#include <cstdlib>
#include <stdexcept>
#include <string>

namespace tvm_sched::integers {

const Functions& ChosenFunctions() {
  const char* asked = std::getenv("TVM_SCHED_INTEGERS");
  const std::string name = asked == nullptr ? "" : asked;
  if (name == "portable") return kPortable;
#ifdef __x86_64__
  const bool has_avx2 = __builtin_cpu_supports("avx2") != 0;
  const bool has_sse41 = __builtin_cpu_supports("sse4.1") != 0;
  if (has_avx2 && (name.empty() || name == "avx2")) return kAvx2;
  if (has_sse41 && (name.empty() || name == "sse4.1")) return kSse41;
#endif
  if (name.empty()) return kPortable;
  throw std::invalid_argument("TVM_SCHED_INTEGERS is \"" + name +
                              "\"; \"avx2\", \"sse4.1\" and \"portable\" are allowed, where the "
                              "processor has the instructions");
}

}  // namespace tvm_sched::integers
