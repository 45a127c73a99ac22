// Layout: 16 bytes of magic, 8 bytes of the header's length (little endian), the header (JSON), and
// the embedded tensors' bytes one after the other.
#include "ffi/runtime/serialize.h"

#include <tvm/ffi/extra/json.h>

#include <cstring>
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

json::Object DescribeTensor(const std::string& name, const TensorSpec& spec) {
  json::Array shape;
  for (std::int64_t extent : spec.shape) shape.push_back(extent);
  json::Object item;
  item.Set(ffi::String("name"), ffi::String(name));
  item.Set(ffi::String("shape"), shape);
  item.Set(ffi::String("dtype"), ffi::String(DtypeName(spec.dtype)));
  return item;
}

[[noreturn]] void Truncated() {
  throw FormatError("the tvm_sched module in the artifact was cut off or is damaged");
}

}  // namespace

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
  for (int i = 0; i < 8; ++i) {
    bytes.push_back(static_cast<char>(static_cast<std::uint64_t>(text.size()) >> (8 * i) & 0xff));
  }
  bytes += text;
  for (const auto& [name, tensor] : content.embedded) {
    bytes.append(reinterpret_cast<const char*>(DataOf(tensor)),
                 static_cast<std::size_t>(SpecOf(tensor).size().count));
  }
  return ffi::Bytes(std::move(bytes));
}

ModuleContent Deserialize(const ffi::Bytes& bytes) {
  const std::string_view view(bytes.data(), bytes.size());
  if (view.size() < kPrefix) Truncated();
  if (view.substr(0, kMagic.size()) != kMagic) {
    throw FormatError("the artifact's tvm_sched module has another format than this library reads");
  }
  std::uint64_t length = 0;
  for (int i = 7; i >= 0; --i) {
    length = length << 8 | static_cast<unsigned char>(view[kMagic.size() + i]);
  }
  if (length > view.size() - kPrefix) Truncated();
  const auto header = JsonCursor::Parse(std::string(view.substr(kPrefix, length)), "module header");
  const JsonCursor version = header.Field("version");
  if (version.NonNegative() > kVersion) {
    version.Unexpected("at most " + std::to_string(kVersion) +
                       ": the artifact was written by a newer tvm_sched than this library");
  }
  ModuleContent content{header.Field("plans").String(), header.Field("metadata").String(), {}};
  std::size_t position = kPrefix + length;
  for (const JsonCursor& item : header.Field("embedded").Items()) {
    const TensorSpec spec = ReadTensorSpec(item);
    const auto size = static_cast<std::size_t>(spec.size().count);
    if (size > view.size() - position) Truncated();
    ffi::Tensor tensor = AllocateTensor(spec);
    if (size > 0) std::memcpy(tensor.data_ptr(), view.data() + position, size);
    content.embedded.Set(spec.name, tensor);
    position += size;
  }
  return content;
}

}  // namespace tvm_sched::runtime
