#include "runtime/processor.h"

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <stdexcept>
#include <utility>

#if defined(__x86_64__) && defined(__clang__)
#include <cpuid.h>
#endif

namespace tvm_sched::runtime {

namespace {

constexpr const char* kAsked = "TVM_SCHED_PROCESSOR";

struct Feature {
  const char* name;
  bool (*here)();  // cpuid says so, and the system saves the registers
};

#if defined(__x86_64__)
#define FEATURE(name) {name, [] { return __builtin_cpu_supports(name) != 0; }}
// Names that clang's builtin does not know: cpuid's bits in their place, or taken as not there, so
// that an artifact that needs one is refused.
#if defined(__clang__)
bool Bit(unsigned leaf, unsigned bit) {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(leaf, &a, &b, &c, &d) != 0 && (c >> bit & 1) != 0;
}
#define GNU_FEATURE(name, otherwise) {name, [] { return otherwise; }}
#else
#define GNU_FEATURE(name, otherwise) FEATURE(name)
#endif
constexpr Feature kFeatures[] = {
    FEATURE("sse3"),
    FEATURE("ssse3"),
    FEATURE("sse4.1"),
    FEATURE("sse4.2"),
    FEATURE("sse4a"),
    FEATURE("popcnt"),
    FEATURE("avx"),
    FEATURE("avx2"),
    FEATURE("fma"),
    GNU_FEATURE("f16c", Bit(1, 29) && __builtin_cpu_supports("avx") != 0),
    FEATURE("bmi"),
    FEATURE("bmi2"),
    GNU_FEATURE("lzcnt", Bit(0x80000001, 5)),
    GNU_FEATURE("movbe", Bit(1, 22)),
    FEATURE("avx512f"),
    FEATURE("avx512dq"),
    FEATURE("avx512cd"),
    FEATURE("avx512bw"),
    FEATURE("avx512vl"),
    FEATURE("avx512ifma"),
    FEATURE("avx512vbmi"),
    FEATURE("avx512vbmi2"),
    FEATURE("avx512vnni"),
    FEATURE("avx512bitalg"),
    FEATURE("avx512bf16"),
    GNU_FEATURE("avx512fp16", false),
    FEATURE("avx512vpopcntdq"),
    FEATURE("gfni"),
    FEATURE("vpclmulqdq"),
    GNU_FEATURE("avxvnni", false),
    GNU_FEATURE("amx-tile", false),
    GNU_FEATURE("amx-int8", false),
    GNU_FEATURE("amx-bf16", false)};
#undef FEATURE
#undef GNU_FEATURE
#else
constexpr Feature kFeatures[] = {{"", [] { return true; }}};
#endif

std::vector<std::string> Names(bool own) {
  std::vector<std::string> names;
  for (const Feature& feature : kFeatures) {
    if (*feature.name != '\0' && (!own || feature.here())) names.emplace_back(feature.name);
  }
  return names;
}

/// What an artifact says of the processor that it needs, if it does.
std::optional<JsonCursor> Needed(const JsonCursor& metadata) {
  const auto needs = metadata.OptionalField("needs");
  return needs ? needs->OptionalField("processor") : std::nullopt;
}

/// The features of a processor or level that this one lacks, with commas.
std::string Missing(const JsonCursor& processor) {
  const std::vector<std::string> own = OwnFeatures();
  std::string missing;
  for (const JsonCursor& feature : processor.Field("features").Items()) {
    const std::string name = feature.String();
    if (std::find(own.begin(), own.end(), name) != own.end()) continue;
    missing += (missing.empty() ? "" : ", ") + name;
  }
  return missing;
}

}  // namespace

std::vector<std::string> KnownFeatures() { return Names(false); }
std::vector<std::string> OwnFeatures() { return Names(true); }

std::string WhyNotHere(const JsonCursor& metadata) {
  const auto processor = Needed(metadata);
  if (!processor) return "";
  const std::string missing = Missing(*processor);
  if (missing.empty()) return "";
  return "its kernels were compiled for the processor \"" + processor->Field("name").String() +
         "\", and this one lacks " + missing +
         ": compile the model on this machine, or for an older one (--processor x86-64-v2)";
}

Level ChooseLevel(const JsonCursor& metadata) {
  const auto processor = Needed(metadata);
  if (!processor) return {};
  const auto levels = processor->OptionalField("levels");
  if (!levels) return {processor->Field("name").String(), ""};
  const char* asked = std::getenv(kAsked);
  Level found;
  std::string known;
  for (const JsonCursor& each : levels->Items()) {
    Level level{each.Field("name").String(), each.Field("suffix").String()};
    known += (known.empty() ? "" : ", ") + level.name;
    const std::string missing = Missing(each);
    if (asked != nullptr && level.name == asked) {
      if (missing.empty()) return level;
      throw std::invalid_argument(std::string(kAsked) + " asks for kernels for " + level.name +
                                  ", and this processor lacks " + missing);
    }
    if (missing.empty()) found = std::move(level);
  }
  if (asked != nullptr && *asked != '\0') {
    throw std::invalid_argument(std::string(kAsked) + " asks for kernels for \"" + asked +
                                "\"; the artifact has them for " + known);
  }
  return found;
}

}  // namespace tvm_sched::runtime
