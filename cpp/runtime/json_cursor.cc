#include "runtime/json_cursor.h"

#include <algorithm>

namespace tvm_sched::runtime {

namespace json = tvm::ffi::json;
using tvm::ffi::Any;

namespace {

/// The value as JSON, cut to what fits into a message.
std::string Excerpt(const Any& value) {
  if (value.as<json::Object>()) return "an object";
  if (value.as<json::Array>()) return "a list";
  std::string text = json::Stringify(value);
  constexpr std::size_t kLongest = 60;
  return text.size() <= kLongest ? text : text.substr(0, kLongest) + "...";
}

std::string Join(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "\"" : ", \"") + word + "\"";
  return text;
}

/// Throws where a document has more than the limits allow. Looks at brackets, commas and strings
/// alone, so that it can go before the parser, on any bytes.
void CheckLimits(const std::string& text, const std::string& root,
                 const JsonCursor::Limits& limits) {
  std::size_t depth = 0, values = 1;
  bool in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      ++values;
      if (++depth > limits.depth) {
        throw FormatError(root + ": lists and objects lie more than " +
                          std::to_string(limits.depth) + " deep in each other (byte " +
                          std::to_string(i) + ")");
      }
    } else if (c == ']' || c == '}') {
      if (depth > 0) --depth;
    } else if (c == ',') {
      ++values;
    }
    if (values > limits.values) {
      throw FormatError(root + ": has more than " + std::to_string(limits.values) + " values");
    }
  }
}

}  // namespace

JsonCursor JsonCursor::Parse(const std::string& text, std::string root) {
  return Parse(text, std::move(root), Limits());
}

JsonCursor JsonCursor::Parse(const std::string& text, std::string root, const Limits& limits) {
  CheckLimits(text, root, limits);
  tvm::ffi::String error;
  Any value = json::Parse(text, &error);
  if (!error.empty()) throw FormatError(root + ": not a JSON document: " + std::string(error));
  return JsonCursor(std::move(value), std::move(root));
}

void JsonCursor::Fail(const std::string& what) const { throw FormatError(path_ + ": " + what); }

void JsonCursor::Unexpected(const std::string& allowed) const {
  Fail("found " + Excerpt(value_) + ", expected " + allowed);
}

void JsonCursor::AllowFields(const std::vector<std::string>& names) const {
  for (const auto& [name, field] : Fields()) {
    if (std::find(names.begin(), names.end(), name) == names.end()) {
      Fail("unknown field \"" + name + "\"; allowed are " + Join(names));
    }
  }
}

std::optional<JsonCursor> JsonCursor::OptionalField(const std::string& name) const {
  auto object = value_.as<json::Object>();
  if (!object) Unexpected("an object");
  auto found = object->Get(tvm::ffi::String(name));
  if (!found.has_value()) return std::nullopt;
  return JsonCursor(*found, path_ + "." + name);
}

JsonCursor JsonCursor::Field(const std::string& name) const {
  std::optional<JsonCursor> field = OptionalField(name);
  if (!field) Fail("field \"" + name + "\" is missing");
  return *std::move(field);
}

std::vector<std::pair<std::string, JsonCursor>> JsonCursor::Fields() const {
  auto object = value_.as<json::Object>();
  if (!object) Unexpected("an object");
  std::vector<std::pair<std::string, JsonCursor>> fields;
  for (const auto& [key, value] : *object) {
    std::string name = key.cast<tvm::ffi::String>();
    fields.emplace_back(name, JsonCursor(value, path_ + "." + name));
  }
  return fields;
}

std::vector<JsonCursor> JsonCursor::Items() const {
  auto array = value_.as<json::Array>();
  if (!array) Unexpected("a list");
  std::vector<JsonCursor> items;
  items.reserve(array->size());
  for (std::size_t i = 0; i < array->size(); ++i) {
    items.push_back(JsonCursor((*array)[i], path_ + "[" + std::to_string(i) + "]"));
  }
  return items;
}

std::string JsonCursor::String() const {
  auto text = value_.as<tvm::ffi::String>();
  if (!text) Unexpected("a string");
  return *text;
}

std::string JsonCursor::Name() const {
  std::string text = String();
  if (text.empty()) Unexpected("a string that is not empty");
  return text;
}

bool JsonCursor::Bool() const {
  if (value_.type_index() != tvm::ffi::TypeIndex::kTVMFFIBool) Unexpected("true or false");
  return value_.cast<bool>();
}

double JsonCursor::Number() const {
  if (value_.type_index() == tvm::ffi::TypeIndex::kTVMFFIBool) Unexpected("a number");
  auto number = value_.as<double>();
  if (!number) {
    auto integer = value_.as<std::int64_t>();
    if (!integer) Unexpected("a number");
    return static_cast<double>(*integer);
  }
  return *number;
}

std::int64_t JsonCursor::Int(std::int64_t low, std::int64_t high) const {
  const bool is_int = value_.type_index() == tvm::ffi::TypeIndex::kTVMFFIInt;
  const std::int64_t number = is_int ? value_.cast<std::int64_t>() : 0;
  if (is_int && low <= number && number <= high) return number;
  std::string allowed = "an integer of at least " + std::to_string(low);
  if (high != std::numeric_limits<std::int64_t>::max()) {
    allowed = "an integer from " + std::to_string(low) + " to " + std::to_string(high);
  }
  Unexpected(allowed);
}

int JsonCursor::Index(std::size_t size, const std::string& what) const {
  if (size == 0) Unexpected("nothing: the list of " + what + " is empty");
  if (value_.type_index() == tvm::ffi::TypeIndex::kTVMFFIInt) {
    const auto number = value_.cast<std::int64_t>();
    if (0 <= number && number < static_cast<std::int64_t>(size)) return static_cast<int>(number);
  }
  Unexpected("an index into " + what + ", 0 to " + std::to_string(size - 1));
}

int JsonCursor::Word(const std::vector<std::string>& words) const {
  auto text = value_.as<tvm::ffi::String>();
  if (text) {
    for (std::size_t i = 0; i < words.size(); ++i) {
      if (words[i] == std::string(*text)) return static_cast<int>(i);
    }
  }
  Unexpected("one of " + Join(words));
}

}  // namespace tvm_sched::runtime
