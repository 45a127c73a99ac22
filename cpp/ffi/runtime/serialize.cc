// Layout: 16 bytes of magic, 8 bytes of the header's length (little endian), the header (JSON), the
// embedded tensors' bytes one after the other, and 8 bytes of checksum of all that.
#include "ffi/runtime/serialize.h"

#include <tvm/ffi/extra/json.h>

#include <cstring>
#include <optional>
#include <string_view>

#include "ffi/runtime/tensors.h"
#include "runtime/json_cursor.h"
#include "runtime/plan_reader.h"

namespace tvm_sched::runtime {

namespace ffi = tvm::ffi;
namespace json = ffi::json;

namespace {

constexpr std::string_view kMagic = "tvm_sched.module";
constexpr std::int64_t kVersion = 1;
constexpr std::size_t kPrefix = kMagic.size() + 8;
constexpr std::size_t kSuffix = 8;

void AppendNumber(std::string* bytes, std::uint64_t number) {
  for (int i = 0; i < 8; ++i) bytes->push_back(static_cast<char>(number >> (8 * i) & 0xff));
}

std::uint64_t ReadNumber(std::string_view bytes) {
  std::uint64_t number = 0;
  for (int i = 7; i >= 0; --i) number = number << 8 | static_cast<unsigned char>(bytes[i]);
  return number;
}

/// FNV's step over words of 8 bytes, so that gigabytes cost no second.
std::uint64_t Checksum(std::string_view bytes) {
  std::uint64_t hash = 0xcbf29ce484222325U ^ bytes.size();
  std::size_t position = 0;
  for (; position + 8 <= bytes.size(); position += 8) {
    std::uint64_t word;
    std::memcpy(&word, bytes.data() + position, 8);
    hash = (hash ^ word) * 0x100000001b3U;
    hash ^= hash >> 29;  // brings the upper bits down, where the product alone leaves them
  }
  for (; position < bytes.size(); ++position) {
    hash = (hash ^ static_cast<unsigned char>(bytes[position])) * 0x100000001b3U;
  }
  return hash ^ hash >> 32;
}

json::Object DescribeTensor(const std::string& name, const TensorSpec& spec) {
  json::Array shape;
  for (std::int64_t extent : spec.shape) shape.push_back(extent);
  json::Object item;
  item.Set(ffi::String("name"), ffi::String(name));
  item.Set(ffi::String("shape"), shape);
  item.Set(ffi::String("dtype"), ffi::String(DtypeName(spec.dtype)));
  return item;
}

std::optional<JsonCursor> TryParse(const std::string& text) {
  try {
    return JsonCursor::Parse(text, "module header");
  } catch (const FormatError&) {
    return std::nullopt;  // damaged, as the checksum will say
  }
}

void RefuseNewer(const JsonCursor& header) {
  auto version = header.OptionalField("version");
  if (!version || !version->value().as<std::int64_t>() || version->NonNegative() <= kVersion)
    return;
  version->Unexpected("at most " + std::to_string(kVersion) +
                      ": the artifact was written by a newer tvm_sched than this library");
}

[[noreturn]] void Truncated() {
  throw FormatError("the tvm_sched module in the artifact was cut off or is damaged");
}

}  // namespace

ffi::Bytes Sealed(std::string bytes) {
  AppendNumber(&bytes, Checksum(bytes));
  return ffi::Bytes(std::move(bytes));
}

ffi::Bytes Serialize(const ModuleContent& content) {
  json::Array tensors;
  for (const auto& [name, tensor] : content.embedded) {
    tensors.push_back(DescribeTensor(name, SpecOf(tensor)));
  }
  json::Object header;
  header.Set(ffi::String("version"), kVersion);
  header.Set(ffi::String("plans"), ffi::String(content.plans_json));
  header.Set(ffi::String("metadata"), ffi::String(content.metadata_json));
  header.Set(ffi::String("embedded"), tensors);
  const std::string text = json::Stringify(header);

  std::string bytes(kMagic);
  AppendNumber(&bytes, text.size());
  bytes += text;
  for (const auto& [name, tensor] : content.embedded) {
    bytes.append(reinterpret_cast<const char*>(DataOf(tensor)),
                 static_cast<std::size_t>(SpecOf(tensor).size().count));
  }
  return Sealed(std::move(bytes));
}

ModuleContent Deserialize(const ffi::Bytes& bytes) {
  const std::string_view view(bytes.data(), bytes.size());
  if (view.size() < kPrefix) Truncated();
  if (view.substr(0, kMagic.size()) != kMagic) {
    throw FormatError("the artifact's tvm_sched module has another format than this library reads");
  }
  const std::uint64_t length = ReadNumber(view.substr(kMagic.size()));
  if (length > view.size() - kPrefix) Truncated();
  const std::string text(view.substr(kPrefix, length));
  // A newer version may end in another way, so it is told apart before the checksum is looked for.
  const std::optional<JsonCursor> header = TryParse(text);
  if (header) RefuseNewer(*header);
  if (view.size() < kPrefix + length + kSuffix) Truncated();
  const std::string_view body = view.substr(0, view.size() - kSuffix);
  if (!header || ReadNumber(view.substr(body.size())) != Checksum(body)) {
    throw FormatError(
        "the tvm_sched module in the artifact was cut off or altered: its checksum is another; "
        "copy the artifact again, or compile it again");
  }
  ModuleContent content{header->Field("plans").String(), header->Field("metadata").String(), {}};
  std::size_t position = kPrefix + length;
  for (const JsonCursor& item : header->Field("embedded").Items()) {
    const TensorSpec spec = ReadTensorSpec(item);
    const auto size = static_cast<std::size_t>(spec.size().count);
    if (size > body.size() - position) Truncated();
    ffi::Tensor tensor = AllocateTensor(spec);
    if (size > 0) std::memcpy(tensor.data_ptr(), view.data() + position, size);
    content.embedded.Set(spec.name, tensor);
    position += size;
  }
  return content;
}

}  // namespace tvm_sched::runtime
