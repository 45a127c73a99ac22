#include "runtime/size_expression.h"

#include <algorithm>
#include <limits>

namespace tvm_sched::runtime {

SizeExpression::SizeExpression(const JsonCursor& cursor, const std::vector<std::string>& symbols)
    : text_(tvm::ffi::json::Stringify(cursor.value())) {
  Append(cursor, symbols);
}

void SizeExpression::Append(const JsonCursor& cursor, const std::vector<std::string>& symbols) {
  if (cursor.value().as<std::int64_t>()) {
    constexpr auto kMost = std::numeric_limits<std::int64_t>::max();
    items_.push_back({Kind::kNumber, cursor.Int(-kMost - 1, kMost)});
  } else if (cursor.value().as<tvm::ffi::String>()) {
    items_.push_back({Kind::kSymbol, cursor.Word(symbols)});
  } else {
    const std::vector<JsonCursor> parts = cursor.Items();
    if (parts.size() != 3) cursor.Unexpected("[operator, left, right]");
    const int kind = parts[0].Word({"+", "-", "*", "//", "%", "min", "max"});
    Append(parts[1], symbols);
    Append(parts[2], symbols);
    items_.push_back({static_cast<Kind>(kind)});
  }
}

int SizeExpression::symbol() const {
  const bool alone = items_.size() == 1 && items_[0].kind == Kind::kSymbol;
  return alone ? static_cast<int>(items_[0].value) : -1;
}

std::int64_t SizeExpression::Evaluate(const std::vector<std::int64_t>& sizes) const {
  std::vector<std::int64_t> stack;
  for (const Item& item : items_) {
    if (item.kind == Kind::kNumber || item.kind == Kind::kSymbol) {
      stack.push_back(item.kind == Kind::kNumber ? item.value : sizes[item.value]);
      continue;
    }
    const std::int64_t right = stack.back();
    stack.pop_back();
    stack.back() = Apply(item.kind, stack.back(), right);
  }
  return stack.back();
}

std::int64_t SizeExpression::Apply(Kind kind, std::int64_t left, std::int64_t right) const {
  std::int64_t result = 0;
  bool overflow = false;
  switch (kind) {
    case Kind::kAdd:
      overflow = __builtin_add_overflow(left, right, &result);
      break;
    case Kind::kSubtract:
      overflow = __builtin_sub_overflow(left, right, &result);
      break;
    case Kind::kMultiply:
      overflow = __builtin_mul_overflow(left, right, &result);
      break;
    case Kind::kMin:
      return std::min(left, right);
    case Kind::kMax:
      return std::max(left, right);
    default: {
      if (right == 0) throw SizeError("the size " + text_ + " is divided by 0");
      const bool quotient = kind == Kind::kDivide;
      if (right == -1) {  // the smallest number has no opposite
        overflow = quotient && __builtin_sub_overflow(std::int64_t{0}, left, &result);
        break;
      }
      const std::int64_t rest = left % right;
      const bool down = rest != 0 && (rest < 0) != (right < 0);
      return quotient ? left / right - (down ? 1 : 0) : rest + (down ? right : 0);
    }
  }
  if (overflow) throw SizeError("the size " + text_ + " does not fit into 64 bits");
  return result;
}

}  // namespace tvm_sched::runtime
