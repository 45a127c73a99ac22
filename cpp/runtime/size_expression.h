// Sizes that depend on the symbols of a plan template: integer expressions, exact in 64 bits.
#ifndef TVM_SCHED_RUNTIME_SIZE_EXPRESSION_H_
#define TVM_SCHED_RUNTIME_SIZE_EXPRESSION_H_

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "runtime/json_cursor.h"

namespace tvm_sched::runtime {

/// Sizes that a template does not take; the message names the dimension and what is allowed.
class SizeError : public std::invalid_argument {
 public:
  using std::invalid_argument::invalid_argument;
};

class SizeExpression {
 public:
  /// Read an integer, a symbol's name, or [operator, left, right]; operators are + - * // % min
  /// max. Division rounds down, and a remainder has the sign of the divisor. Throws FormatError.
  SizeExpression(const JsonCursor& cursor, const std::vector<std::string>& symbols);

  /// The value for a size of each symbol. Throws SizeError for a division by 0, and for what does
  /// not fit into 64 bits.
  std::int64_t Evaluate(const std::vector<std::int64_t>& sizes) const;

  /// The symbol's index if the expression is nothing but a symbol, else -1.
  int symbol() const;
  /// As in the document.
  const std::string& text() const { return text_; }

 private:
  enum class Kind { kAdd, kSubtract, kMultiply, kDivide, kRemainder, kMin, kMax, kNumber, kSymbol };
  struct Item {
    Kind kind;
    std::int64_t value = 0;  // the number, or the symbol's index
  };

  void Append(const JsonCursor& cursor, const std::vector<std::string>& symbols);
  std::int64_t Apply(Kind kind, std::int64_t left, std::int64_t right) const;

  std::vector<Item> items_;  // operands before their operator
  std::string text_;
};

}  // namespace tvm_sched::runtime

#endif  // TVM_SCHED_RUNTIME_SIZE_EXPRESSION_H_
