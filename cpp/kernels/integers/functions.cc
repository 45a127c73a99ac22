#include "kernels/integers/functions.h"

#include <cstdlib>
#include <stdexcept>
#include <string>

#ifdef __x86_64__
#include <cpuid.h>
#endif

namespace tvm_sched::integers {

namespace {

#ifdef __x86_64__
bool HasAvxVnni() {
  unsigned int a = 0, b = 0, c = 0, d = 0;
  const bool known = __get_cpuid_count(7, 1, &a, &b, &c, &d) != 0;
  return known && (a >> 4 & 1) != 0 && __builtin_cpu_supports("avx2") != 0;
}

bool HasAvx512Vnni() {
  return __builtin_cpu_supports("avx512vnni") != 0 && __builtin_cpu_supports("avx512bw") != 0 &&
         __builtin_cpu_supports("avx512vl") != 0 && __builtin_cpu_supports("avx512dq") != 0;
}

Functions With(ByteProducts& bytes, bool avx512) {
  Functions made = kAvx2;
  made.bytes = &bytes;
  bytes.add_outer = AddOuterAvx2;
  if (avx512) made.finish = FinishAvx512;
  if (avx512) bytes.depthwise = kAvx512Vnni.depthwise;  // with AMX, too
  if (avx512 && __builtin_cpu_supports("avx512vbmi") != 0) {
    made.finish = FinishAvx512Vbmi;
    bytes.bring_fours = BringFoursAvx512Vbmi;
  }
  return made;
}

/// By name, the best first.
const Functions* Find(const std::string& name) {
  static ByteProducts amx_bytes = kAmx, avx512_bytes = kAvx512Vnni, avx_bytes = kAvxVnni;
  static const Functions amx = With(amx_bytes, /*avx512=*/true);
  static const Functions avx512 = With(avx512_bytes, /*avx512=*/true);
  static const Functions avx = With(avx_bytes, /*avx512=*/false);
  const auto asked = [&](const char* one) { return name.empty() || name == one; };
  if (asked("amx") && HasAvx512Vnni() && MayUseAmx()) return &amx;
  if (asked("avx512vnni") && HasAvx512Vnni()) return &avx512;
  if (asked("avxvnni") && HasAvxVnni()) return &avx;
  if (asked("avx2") && __builtin_cpu_supports("avx2") != 0) return &kAvx2;
  if (asked("sse4.1") && __builtin_cpu_supports("sse4.1") != 0) return &kSse41;
  return asked("portable") ? &kPortable : nullptr;
}
#else
const Functions* Find(const std::string& name) {
  return name.empty() || name == "portable" ? &kPortable : nullptr;
}
#endif

}  // namespace

const Functions& ChosenFunctions() {
  const char* asked = std::getenv("TVM_SCHED_INTEGERS");
  const Functions* found = Find(asked == nullptr ? "" : asked);
  if (found != nullptr) return *found;
  throw std::invalid_argument("TVM_SCHED_INTEGERS is \"" + std::string(asked) +
                              "\"; \"amx\", \"avx512vnni\", \"avxvnni\", \"avx2\", \"sse4.1\" and "
                              "\"portable\" are allowed, "
                              "where the processor has the instructions");
}

}  // namespace tvm_sched::integers
