#include "kernels/onednn/value_check.h"

#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <optional>
#include <random>
#include <sstream>
#include <utility>

#include "kernels/onednn/plain_values.h"
#include "kernels/sampled_positions.h"
#include "kernels/value_findings.h"
#include "threads/no_fork.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace tvm_sched::onednn {

using dnnl::memory;

namespace {

constexpr int kVersion = 1;  // of the check: what an older one found does not count
constexpr std::int64_t kMostTerms = 1
                                    << 20;  // of all compared elements, if they are not the fewest
constexpr std::int64_t kFewestCompared = 192;
constexpr std::int64_t kLarge = 64 << 20;  // bytes of a kernel's tensors

/// All integers of 8 bits.
const std::vector<float>& Bytes() {
  static const std::vector<float> table = [] {
    std::mt19937 random(8);
    std::vector<float> made(kSmallNumbers);
    for (float& each : made) each = static_cast<float>(random() >> 24);
    return made;
  }();
  return table;
}

/// The numbers of an input: as float32, and as the primitive is given them.
struct Input {
  memory values, given;
};

void Store(const float* from, std::size_t count, DataType type, void* to) {
  for (std::size_t k = 0; k < count; ++k) {
    switch (type) {
      case DataType::kBfloat16:
        static_cast<std::uint16_t*>(to)[k] =
            static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(from[k]) >> 16);
        break;
      case DataType::kInt32:
        static_cast<std::int32_t*>(to)[k] = static_cast<std::int32_t>(from[k]);
        break;
      case DataType::kInt8:
        static_cast<std::int8_t*>(to)[k] = static_cast<std::int8_t>(from[k]);
        break;
      default:
        static_cast<std::uint8_t*>(to)[k] = static_cast<std::uint8_t>(from[k]);
    }
  }
}

double Load(const void* from, std::int64_t at, DataType type) {
  switch (type) {
    case DataType::kFloat32:
      return static_cast<const float*>(from)[at];
    case DataType::kBfloat16:
      return std::bit_cast<float>(std::uint32_t{static_cast<const std::uint16_t*>(from)[at]} << 16);
    case DataType::kInt32:
      return static_cast<const std::int32_t*>(from)[at];
    case DataType::kInt8:
      return static_cast<const std::int8_t*>(from)[at];
    default:
      return static_cast<const std::uint8_t*>(from)[at];
  }
}

bool IsByte(DataType type) { return type == DataType::kInt8 || type == DataType::kUint8; }

/// An input's numbers times a power of 2, in the layout in which it comes when the kernel is
/// called.
Input Fill(Operand operand, float factor, std::size_t first) {
  const std::string layout = std::exchange(operand.layout, "");
  Operand plain = operand;
  plain.type = DataType::kFloat32;
  Input made{memory(LayoutOf(plain), Engine()), {}};
  const std::size_t count = made.values.get_desc().get_size() / sizeof(float);
  auto* values = static_cast<float*>(made.values.get_data_handle());
  std::vector<float> table = IsByte(operand.type) ? Bytes() : SmallNumbers();
  for (float& each : table) {
    each = operand.type == DataType::kInt8    ? each - 128
           : operand.type == DataType::kUint8 ? each
                                              : each * factor;
  }
  std::rotate(table.begin(), table.begin() + static_cast<std::ptrdiff_t>(first), table.end());
  for (std::size_t k = 0; k < count; k += kSmallNumbers) {
    std::copy_n(table.data(), std::min(kSmallNumbers, count - k), values + k);
  }
  made.given = made.values;
  if (operand.type != DataType::kFloat32) {
    made.given = memory(LayoutOf(operand), Engine());
    Store(values, count, operand.type, made.given.get_data_handle());
  }
  if (!layout.empty()) {
    operand.layout = layout;
    memory laid_out(LayoutOf(operand), Engine());
    dnnl::stream stream(Engine());
    dnnl::reorder(made.given, laid_out).execute(stream, made.given, laid_out);
    stream.wait();
    made.given = laid_out;
  }
  return made;
}

/// What the source is multiplied by. Sums of products are about as large as the bias then: a clip
/// or a sigmoid shows what is wrong before it. Squares in a local response count beside its
/// constant.
float SourceFactor(const Description& d, std::int64_t terms) {
  if (d.primitive == "local_response_normalization") return 64;
  if (d.operands.size() == 2 || d.primitive == "layer_normalization") return 0.5F;
  return std::exp2(-std::round(std::log2(4 * std::sqrt(static_cast<float>(terms)))));
}

std::int64_t TensorBytes(const Description& d) {
  std::int64_t bytes = 0;
  for (const Operand& operand : d.operands) bytes += operand.elements() * BytesOf(operand.type);
  return bytes;
}

std::string TextOf(const std::vector<std::int64_t>& numbers) {
  std::string text;
  for (const std::int64_t each : numbers) text += (text.empty() ? "" : "x") + std::to_string(each);
  return text;
}

/// All of a kernel that its values depend on.
std::string TextOf(const Description& d) {
  static const char* const kTypes[] = {"float32", "bfloat16", "int32", "int16", "int8", "uint8"};
  std::ostringstream text;
  text << d.primitive << (d.algorithm.empty() ? "" : " ") << d.algorithm;
  for (const Operand& operand : d.operands) {
    text << ", " << kTypes[static_cast<int>(operand.type)] << ' ' << TextOf(operand.dims) << " by "
         << TextOf(operand.strides) << (operand.parameter ? " parameter" : "")
         << (operand.layout.empty() ? "" : " ") << operand.layout;
  }
  if (d.bias >= 0) text << ", bias " << d.bias;
  for (const PostOperation& post : d.post) {
    text << ", " << post.name << ' ' << post.alpha << ' ' << post.beta << ' ' << post.input;
  }
  for (const auto& [name, list] :
       {std::pair("kernel", &d.kernel), std::pair("strides", &d.strides),
        std::pair("dilation", &d.dilation), std::pair("padding", &d.padding_low),
        std::pair("to", &d.padding_high)}) {
    if (!list->empty()) text << ", " << name << ' ' << TextOf(*list);
  }
  for (const double number : d.numbers) text << ", " << number;
  if (d.source_zero != 0) text << ", zero " << d.source_zero;
  return text.str();
}

/// Name, model and caches: oneDNN cuts its blocks by the latter.
std::string Processor() {
  std::ostringstream text;
#if defined(__x86_64__)
  unsigned registers[12] = {};
  for (unsigned k = 0; k < 3; ++k) {
    unsigned* r = registers + 4 * k;
    __get_cpuid(0x80000002 + k, r, r + 1, r + 2, r + 3);
  }
  char name[sizeof registers + 1] = {};
  std::memcpy(name, registers, sizeof registers);
  std::istringstream words(name);
  for (std::string word; words >> word;) text << word << ' ';
  unsigned model = 0, unused[3];
  __get_cpuid(1, &model, unused, unused + 1, unused + 2);
  text << "model " << std::hex << model << std::dec << ' ';
#endif
  text << "caches " << sysconf(_SC_LEVEL1_DCACHE_SIZE) << ' ' << sysconf(_SC_LEVEL2_CACHE_SIZE)
       << ' ' << sysconf(_SC_LEVEL3_CACHE_SIZE);
  return text.str();
}

/// What a finding holds for besides its kernel.
const std::string& Machine() {
  static const std::string machine = [] {
    const dnnl_version_t* version = dnnl_version();
    std::ostringstream text;
    text << "oneDNN " << version->major << '.' << version->minor << '.' << version->patch << ' '
         << version->hash << ", " << Processor() << ", instruction sets "
         << static_cast<int>(dnnl::get_effective_cpu_isa());
    return text.str();
  }();
  return machine;
}

std::string Distorted() {
  const char* name = std::getenv("TVM_SCHED_DISTORT");
  return name == nullptr ? "" : name;
}

/// Run the primitive once and compare; what is wrong, or nothing.
std::optional<std::string> Compare(const Description& d, const Prepared& prepared) {
  std::vector<Input> inputs;
  std::vector<const float*> values(d.operands.size() - 1, nullptr);
  const std::int64_t terms = PlainValues(d, values).terms();
  for (std::size_t k = 0; k + 1 < d.operands.size(); ++k) {
    const float factor = k == 0 ? SourceFactor(d, terms) : k == 1 ? 1 : 0.5F;
    inputs.push_back(Fill(d.operands[k], factor, 1009 * k));
    values[k] = static_cast<const float*>(inputs.back().values.get_data_handle());
  }
  dnnl::stream stream(Engine());
  std::unordered_map<int, memory> arguments;
  memory result;
  for (const Prepared::Binding& binding : prepared.bindings) {
    memory expected(binding.expected, Engine());
    if (static_cast<std::size_t>(binding.operand) == inputs.size()) {
      result = expected;
      std::memset(result.get_data_handle(), 0xFF, binding.expected.get_size());  // NaN
    } else {
      memory& given = inputs[static_cast<std::size_t>(binding.operand)].given;
      if (given.get_desc() == binding.expected) {
        expected = given;
      } else {
        dnnl::reorder(given, expected).execute(stream, given, expected);
        stream.wait();
      }
    }
    arguments.emplace(binding.execution_argument, expected);
  }
  if (prepared.scratchpad.get_size() > 0) {
    arguments.emplace(DNNL_ARG_SCRATCHPAD, memory(prepared.scratchpad, Engine()));
  }
  std::int32_t zero = d.source_zero;
  if (zero != 0) {
    const memory::desc one({1}, memory::data_type::s32, memory::format_tag::a);
    arguments.emplace(DNNL_ARG_ATTR_ZERO_POINTS | DNNL_ARG_SRC, memory(one, Engine(), &zero));
  }
  prepared.make().execute(stream, arguments);
  stream.wait();
  const std::string distorted = Distorted();
  bool lies = !distorted.empty() && prepared.implementation.find(distorted) != std::string::npos;
  const PlainValues plain(d, values);
  const std::int64_t count =
      std::max(kFewestCompared, kMostTerms / std::max<std::int64_t>(1, terms));
  for (const auto& position : SampledPositions(d.result().dims, count, d.strides)) {
    const PlainValues::Value wanted = plain.At(position);
    if (!std::isfinite(wanted.value) || !std::isfinite(wanted.tolerance)) continue;
    double found = Load(result.get_data_handle(), d.result().OffsetOf(position), d.result().type);
    if (std::exchange(lies, false)) found += 1;
    const double rounding = d.result().type == DataType::kBfloat16 ? 0x1p-8 * std::abs(found) : 0;
    if (std::abs(found - wanted.value) <= wanted.tolerance + rounding) continue;
    std::ostringstream text;
    text << "computed " << found << " in place of " << wanted.value << " at " << TextOf(position);
    return text.str();
  }
  return std::nullopt;
}

ValueFindings& TheFindings() {
  static ValueFindings findings("onednn_values.txt");
  return findings;
}

}  // namespace

bool IsRight(const Description& description, int threads, Prepared* prepared) {
  const std::string kernel = TextOf(description);
  const std::string where = Machine() + ", threads " + std::to_string(threads);
  const std::string& alike = description.family.empty() ? kernel : description.family;
  const std::string key = Hash(std::to_string(kVersion) + where + prepared->implementation + alike +
                               "distorted " + Distorted());
  prepared->check = key;
  return TheFindings().IsRight(key, [&]() -> std::optional<std::string> {
    // Kernels are made by several threads: of large ones one holds its tensors at a time.
    static std::mutex large;
    std::unique_lock<std::mutex> alone(large, std::defer_lock);
    if (TensorBytes(description) > kLarge) alone.lock();
    const std::optional<std::string> finding = Compare(description, *prepared);
    if (!finding) return std::nullopt;
    return prepared->implementation + " " + *finding + " of " + kernel + "; " + where;
  });
}

void TrustChecks(const std::vector<std::string>& names) {
  const threads::NoFork whole;
  TheFindings().Trust(names);
}
std::vector<std::string> FoundWrong() {
  const threads::NoFork whole;
  return TheFindings().Wrong(Machine());
}
int CountChecks() {
  const threads::NoFork whole;
  return TheFindings().Count();
}

}  // namespace tvm_sched::onednn
