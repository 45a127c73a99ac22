#include "runtime/safetensors.h"

#include <tvm/ffi/dtype.h>

#include <array>
#include <utility>

#include "runtime/json_cursor.h"
#include "runtime/plan_reader.h"

namespace tvm_sched::runtime {

namespace {

// The format's own limit.
constexpr std::uint64_t kLongestHeader = 100'000'000;
// Of a header: names, an object and two lists for each tensor. The largest models have some 100'000
// tensors.
constexpr JsonCursor::Limits kLimits{.depth = 8, .values = 10'000'000};

// The format's names of the types that TVM has too.
constexpr std::array<std::pair<const char*, const char*>, 16> kDtypes{{
    {"BOOL", "bool"},
    {"U8", "uint8"},
    {"I8", "int8"},
    {"U16", "uint16"},
    {"I16", "int16"},
    {"U32", "uint32"},
    {"I32", "int32"},
    {"U64", "uint64"},
    {"I64", "int64"},
    {"F16", "float16"},
    {"BF16", "bfloat16"},
    {"F32", "float32"},
    {"F64", "float64"},
    {"F8_E4M3", "float8_e4m3fn"},
    {"F8_E5M2", "float8_e5m2"},
    {"F8_E8M0", "float8_e8m0fnu"},
}};

DLDataType ReadStoredDtype(const JsonCursor& cursor) {
  std::vector<std::string> names;
  for (const auto& [stored, ours] : kDtypes) names.emplace_back(stored);
  return tvm::ffi::StringToDLDataType(kDtypes[cursor.Word(names)].second);
}

StoredTensor ReadEntry(const JsonCursor& cursor, const std::string& name, const std::byte* data,
                       std::int64_t data_size) {
  cursor.AllowFields({"dtype", "shape", "data_offsets"});
  StoredTensor tensor;
  tensor.spec.name = name;
  tensor.spec.dtype = ReadStoredDtype(cursor.Field("dtype"));
  std::int64_t room = data_size;  // elements that still fit: keeps the product from overflowing
  for (const JsonCursor& item : cursor.Field("shape").Items()) {
    const std::int64_t extent = item.NonNegative();
    if (extent > 0) room /= extent;
    if (extent > 0 && room == 0) {
      cursor.Field("shape").Fail("the tensor is larger than the file's " +
                                 std::to_string(data_size) + " bytes of data");
    }
    tensor.spec.shape.push_back(extent);
  }
  const JsonCursor offsets = cursor.Field("data_offsets");
  const std::vector<JsonCursor> pair = offsets.Items();
  if (pair.size() != 2) offsets.Fail("expected two offsets, begin and end");
  const std::int64_t begin = pair[0].Int(0, data_size);
  const std::int64_t end = pair[1].Int(begin, data_size);
  if (end - begin != tensor.spec.size().count) {
    offsets.Fail("span " + std::to_string(end - begin) + " bytes, but " + tensor.spec.ToString() +
                 " has " + std::to_string(tensor.spec.size().count));
  }
  tensor.data = data + begin;
  return tensor;
}

std::uint64_t ReadHeaderLength(const MappedFile& file) {
  std::uint64_t length = 0;
  for (int i = 7; i >= 0; --i)
    length = length << 8 | std::to_integer<std::uint64_t>(file.data()[i]);
  return length;
}

}  // namespace

SafetensorsFile OpenSafetensors(const std::string& path) {
  SafetensorsFile result{MappedFile::Open(path), {}};
  const MappedFile& file = *result.file;
  const std::int64_t size = file.size().count;
  constexpr std::int64_t kPrefix = 8;
  if (size < kPrefix) {
    throw FormatError(path + ": has " + std::to_string(size) +
                      " bytes, so it is no safetensors file, or it was cut off");
  }
  const std::uint64_t length = ReadHeaderLength(file);
  if (length > kLongestHeader || static_cast<std::int64_t>(length) > size - kPrefix) {
    throw FormatError(path + ": its header should have " + std::to_string(length) +
                      " bytes, but the file has " + std::to_string(size) +
                      ", so it is no safetensors file, or it was cut off");
  }
  const auto header_size = static_cast<std::int64_t>(length);
  const std::string header(reinterpret_cast<const char*>(file.data()) + kPrefix, length);
  const JsonCursor root = JsonCursor::Parse(header, path + ": header", kLimits);
  const std::byte* data = file.data() + kPrefix + header_size;
  for (const auto& [name, entry] : root.Fields()) {
    if (name == "__metadata__") continue;
    result.tensors.emplace(name, ReadEntry(entry, name, data, size - kPrefix - header_size));
  }
  return result;
}

}  // namespace tvm_sched::runtime
