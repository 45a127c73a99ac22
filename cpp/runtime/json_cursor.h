// A position in a JSON document: reads typed values and knows its path, so that every error says
// where it is, what was found and what is allowed.
#ifndef TVM_SCHED_RUNTIME_JSON_CURSOR_H_
#define TVM_SCHED_RUNTIME_JSON_CURSOR_H_

#include <tvm/ffi/any.h>
#include <tvm/ffi/extra/json.h>

#include <cstdint>
#include <limits>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace tvm_sched::runtime {

/// A document that is not what its format says.
class FormatError : public std::invalid_argument {
 public:
  using std::invalid_argument::invalid_argument;
};

class JsonCursor {
 public:
  /// How deep lists and objects may lie in each other (the parser calls itself for each), and how
  /// many values there may be (each takes some 100 bytes once parsed).
  struct Limits {
    std::size_t depth = 100;
    std::size_t values = 100'000'000;
  };

  /// Parse a document. `root` is what paths begin with: "$", or the document's own name.
  static JsonCursor Parse(const std::string& text, std::string root);
  static JsonCursor Parse(const std::string& text, std::string root, const Limits& limits);

  const std::string& path() const { return path_; }
  const tvm::ffi::Any& value() const { return value_; }

  /// Throws: "<path>: <what>".
  [[noreturn]] void Fail(const std::string& what) const;
  /// Throws: "<path>: found <this value>, expected <allowed>".
  [[noreturn]] void Unexpected(const std::string& allowed) const;

  /// Every field must be one of these; a misspelt field is an error rather than a default.
  void AllowFields(const std::vector<std::string>& names) const;
  JsonCursor Field(const std::string& name) const;
  std::optional<JsonCursor> OptionalField(const std::string& name) const;
  /// All fields of an object, in the document's order.
  std::vector<std::pair<std::string, JsonCursor>> Fields() const;
  std::vector<JsonCursor> Items() const;

  bool IsNull() const { return value_ == nullptr; }
  std::string String() const;
  /// A string that is not empty.
  std::string Name() const;
  bool Bool() const;
  double Number() const;
  std::int64_t Int(std::int64_t low, std::int64_t high) const;
  std::int64_t NonNegative() const { return Int(0, std::numeric_limits<std::int64_t>::max()); }
  /// An index into a list of `size` items; `what` names the list.
  int Index(std::size_t size, const std::string& what) const;
  /// One of a few words, as its position in `words`.
  int Word(const std::vector<std::string>& words) const;

 private:
  JsonCursor(tvm::ffi::Any value, std::string path)
      : value_(std::move(value)), path_(std::move(path)) {}

  tvm::ffi::Any value_;
  std::string path_;
};

}  // namespace tvm_sched::runtime

#endif  // TVM_SCHED_RUNTIME_JSON_CURSOR_H_
