#include "kernels/onednn/description.h"

#include <algorithm>
#include <map>

#include "runtime/json_cursor.h"

namespace tvm_sched::onednn {

using runtime::JsonCursor;

namespace {

constexpr std::int64_t kVersion = 10, kOldest = 8;  // 8 has no "checked", 9 no "symbols"
constexpr std::int64_t kLargest = std::int64_t{1} << 48;
constexpr std::int64_t kMostValues = std::int64_t{1} << 20;

using Sizes = OpenDescription::Sizes;

/// A number, or the sum of products of a number and symbols, each of which has a size.
std::int64_t Integer(const JsonCursor& item, const Sizes& sizes) {
  if (!item.value().as<tvm::ffi::json::Array>()) return item.Int(-kLargest, kLargest);
  std::int64_t sum = 0;
  for (const JsonCursor& term : item.Items()) {
    const std::vector<JsonCursor> factors = term.Items();
    if (factors.empty()) term.Fail("a product has at least a number");
    std::int64_t product = factors[0].Int(-kLargest, kLargest);
    for (std::size_t k = 1; k < factors.size(); ++k) {
      product *= sizes[static_cast<std::size_t>(factors[k].Index(sizes.size(), "symbols"))];
    }
    sum += product;
  }
  return sum;
}

std::vector<std::int64_t> Integers(const JsonCursor& list, const Sizes& sizes) {
  std::vector<std::int64_t> result;
  for (const JsonCursor& item : list.Items()) result.push_back(Integer(item, sizes));
  return result;
}

DataType ReadType(const JsonCursor& item) {
  static const std::map<std::string, DataType> known{
      {"float32", DataType::kFloat32}, {"bfloat16", DataType::kBfloat16},
      {"int32", DataType::kInt32},     {"int16", DataType::kInt16},
      {"int8", DataType::kInt8},       {"uint8", DataType::kUint8}};
  const auto found = known.find(item.Name());
  if (found == known.end()) item.Unexpected("float32, bfloat16, int32, int16, int8 or uint8");
  return found->second;
}

Operand ReadOperand(const JsonCursor& item, const Sizes& sizes) {
  item.AllowFields({"dims", "strides", "parameter", "offset", "within", "type", "value", "layout"});
  Operand operand{Integers(item.Field("dims"), sizes), Integers(item.Field("strides"), sizes)};
  if (operand.dims.empty() || operand.dims.size() != operand.strides.size()) {
    item.Fail("dims and strides must be of one length, at least 1");
  }
  if (auto field = item.OptionalField("parameter")) operand.parameter = field->Bool();
  if (auto field = item.OptionalField("offset")) operand.offset = Integer(*field, sizes);
  if (auto field = item.OptionalField("within")) operand.within = Integer(*field, sizes);
  if (auto field = item.OptionalField("value")) {
    operand.value = static_cast<int>(field->Int(0, kMostValues - 1));
  }
  if (auto field = item.OptionalField("type")) operand.type = ReadType(*field);
  if (auto field = item.OptionalField("layout")) operand.layout = field->Name();
  if (!operand.Fits()) item.Fail("the elements lie outside of the tensor");
  return operand;
}

PostOperation ReadPost(const JsonCursor& item, std::size_t operands) {
  item.AllowFields({"name", "alpha", "beta", "input"});
  PostOperation post{item.Field("name").Name()};
  if (auto field = item.OptionalField("alpha")) post.alpha = static_cast<float>(field->Number());
  if (auto field = item.OptionalField("beta")) post.beta = static_cast<float>(field->Number());
  if (auto field = item.OptionalField("input")) post.input = field->Index(operands, "operands");
  return post;
}

Description ReadDescription(const JsonCursor& item, const Sizes& sizes = {}) {
  item.AllowFields({"primitive", "operands", "bias", "post", "kernel", "strides", "dilation",
                    "padding_low", "padding_high", "algorithm", "axis", "numbers", "source_zero",
                    "source_zero_input", "cores", "implementation", "symbols", "examples"});
  Description found;
  found.primitive = item.Field("primitive").Name();
  for (const JsonCursor& operand : item.Field("operands").Items()) {
    found.operands.push_back(ReadOperand(operand, sizes));
  }
  if (found.operands.size() < 2) item.Fail("a kernel has at least an input and a result");
  const std::size_t count = found.operands.size();
  if (auto field = item.OptionalField("bias")) found.bias = field->Index(count, "operands");
  if (auto field = item.OptionalField("post")) {
    for (const JsonCursor& post : field->Items()) found.post.push_back(ReadPost(post, count));
  }
  const std::pair<const char*, std::vector<std::int64_t>*> lists[] = {
      {"kernel", &found.kernel},
      {"strides", &found.strides},
      {"dilation", &found.dilation},
      {"padding_low", &found.padding_low},
      {"padding_high", &found.padding_high}};
  for (const auto& [name, list] : lists) {
    if (auto field = item.OptionalField(name)) *list = Integers(*field, sizes);
  }
  if (auto field = item.OptionalField("algorithm")) found.algorithm = field->Name();
  if (auto field = item.OptionalField("implementation")) found.implementation = field->Name();
  if (auto field = item.OptionalField("axis")) found.axis = static_cast<int>(field->Int(0, 11));
  if (auto field = item.OptionalField("numbers")) {
    for (const JsonCursor& number : field->Items()) found.numbers.push_back(number.Number());
  }
  if (auto field = item.OptionalField("source_zero")) {
    found.source_zero = static_cast<std::int32_t>(field->Int(-128, 255));
  }
  if (auto field = item.OptionalField("source_zero_input")) {
    found.source_zero_input = field->Index(count, "operands");
  }
  if (auto field = item.OptionalField("cores")) found.cores = runtime::ReadShare(*field);
  return found;
}

/// What a kernel's values depend on: not its examples, nor which tensors it reads.
std::string TextOf(const JsonCursor& item) {
  namespace json = tvm::ffi::json;
  json::Object text = item.value().cast<json::Object>();
  text.erase(tvm::ffi::String("examples"));
  json::Array operands;
  for (const JsonCursor& each : item.Field("operands").Items()) {
    json::Object operand = each.value().cast<json::Object>();
    operand.erase(tvm::ffi::String("value"));
    operands.push_back(operand);
  }
  text.Set(tvm::ffi::String("operands"), operands);
  return json::Stringify(text);
}

/// Let the padding at the end reach as far as the last windows do: TVM rounds the number of windows
/// up in ceil mode, by sizes that are known here.
void CoverWindows(Description* d) {
  const bool pools = d->primitive == "pooling" || d->primitive == "max_pool";
  if (!pools && d->primitive != "convolution") return;
  const std::size_t images = d->padding_high.size();
  const std::vector<std::int64_t>& filters = d->operands[1].dims;
  for (std::size_t k = 0; k < images; ++k) {
    const std::int64_t window = pools ? d->kernel[k] : filters[filters.size() - images + k];
    const std::int64_t reach = (d->result().dims[2 + k] - 1) * d->strides[k] +
                               (window - 1) * (d->dilation[k] + 1) + 1 -
                               d->operands[0].dims[2 + k] - d->padding_low[k];
    d->padding_high[k] = std::max(d->padding_high[k], reach);
  }
}

}  // namespace

OpenDescription::OpenDescription(JsonCursor item) : item_(std::move(item)), text_(TextOf(item_)) {
  constexpr std::int64_t kMostAxes = 32;
  const std::size_t operands = item_.Field("operands").Items().size();
  for (const JsonCursor& symbol : item_.Field("symbols").Items()) {
    const std::vector<JsonCursor> parts = symbol.Items();
    if (parts.size() != 3) symbol.Fail("a symbol has an operand, an axis and a number");
    symbols_.push_back({static_cast<std::size_t>(parts[0].Index(operands, "operands")),
                        static_cast<int>(parts[1].Int(0, kMostAxes)),
                        parts[2].Int(-kLargest, kLargest)});
  }
  example_ = ReadDescription(item_, Sizes(symbols_.size(), 1));
  if (auto field = item_.OptionalField("examples")) {
    for (const JsonCursor& each : field->Items()) {
      examples_.push_back(Integers(each, {}));
      if (examples_.back().size() != symbols_.size()) each.Fail("one number for each symbol");
    }
  }
}

Description OpenDescription::At(const Sizes& sizes) const {
  Description found = ReadDescription(item_, sizes);
  CoverWindows(&found);
  found.family = text_;
  for (const std::int64_t size : sizes) {
    found.family += ' ' + std::to_string(Representative(size));
  }
  return found;
}

std::int64_t BytesOf(DataType type) {
  if (type == DataType::kBfloat16 || type == DataType::kInt16) return 2;
  return type == DataType::kFloat32 || type == DataType::kInt32 ? 4 : 1;
}

bool Operand::Fits() const {
  if (within < 0 || offset < 0) return false;
  if (within == 0) return offset == 0;
  std::int64_t left = within - 1 - offset;  // elements behind the farthest so far
  for (std::size_t d = 0; d < dims.size() && left >= 0; ++d) {
    if (dims[d] < 1 || strides[d] < 0) return false;
    if (dims[d] == 1 || strides[d] == 0) continue;
    if (dims[d] - 1 > left / strides[d]) return false;
    left -= (dims[d] - 1) * strides[d];
  }
  return left >= 0;
}

std::int64_t Operand::elements() const {
  if (within > 0) return within;
  std::int64_t count = 1;
  for (std::int64_t dim : dims) count *= dim;
  return count;
}

std::int64_t Operand::OffsetOf(const std::vector<std::int64_t>& position) const {
  std::int64_t found = 0;
  for (std::size_t d = 0; d < position.size(); ++d) {
    if (dims[d] != 1) found += position[d] * strides[d];
  }
  return found;
}

Document ReadDocument(const std::string& json) {
  const JsonCursor document = JsonCursor::Parse(json, "oneDNN kernels");
  document.AllowFields({"version", "kernels", "threads", "checked"});
  const JsonCursor version = document.Field("version");
  if (version.NonNegative() < kOldest || version.NonNegative() > kVersion) {
    version.Unexpected(std::to_string(kOldest) + " or " + std::to_string(kVersion) +
                       ": the artifact was written by another tvm_sched than this library; compile "
                       "the model again");
  }
  Document result;
  for (const auto& [name, item] : document.Field("kernels").Fields()) {
    if (item.OptionalField("symbols")) {
      result.open.emplace_back(name, OpenDescription(item));
    } else {
      result.kernels.emplace_back(name, ReadDescription(item));
    }
  }
  if (auto field = document.OptionalField("threads")) result.threads = runtime::ReadThreads(*field);
  if (auto field = document.OptionalField("checked")) {
    for (const JsonCursor& name : field->Items()) result.checked.push_back(name.Name());
  }
  return result;
}

}  // namespace tvm_sched::onednn
