// Plans whose sizes depend on symbols: a template gives a plan for each set of sizes.
#ifndef TVM_SCHED_RUNTIME_PLAN_TEMPLATE_H_
#define TVM_SCHED_RUNTIME_PLAN_TEMPLATE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/plan.h"
#include "runtime/size_expression.h"

namespace tvm_sched::runtime {

/// An open dimension, and the sizes that it may have.
struct Symbol {
  std::string name;
  std::int64_t low = 0;
  std::optional<std::int64_t> high{};
  /// The largest size for which the template is meant if the artifact has several; else none.
  std::optional<std::int64_t> anchor{};
};

/// Two sizes, as expressions, that must be equal.
struct Condition {
  std::string where;
  int size;
  int needed;
};

/// What makes a plan a template. Where the template's shapes, and the sizes that it gives to
/// kernels, say -1 - k, expression k of this list stands. Its arena buffers have no place yet.
struct TemplateSizes {
  std::vector<Symbol> symbols;
  std::vector<Condition> conditions;
  std::vector<SizeExpression> expressions;
  /// The arena buffers in the order in which they are written, and of each of them: those before
  /// it that may still be in use when it is written, whichever steps take long. Parameters share
  /// their bytes with no other buffer, so that they may remain for a warm run.
  std::vector<int> blocks;
  std::vector<std::vector<int>> in_use;

  /// Whether tensors of this template have the types of those of another one.
  bool SameShapes(const std::vector<TensorSpec>& own, const TemplateSizes& other,
                  const std::vector<TensorSpec>& others) const;
  /// The index of an expression, which is added if it is new.
  int Add(const JsonCursor& cursor);
  /// Find `blocks` and `in_use` of a plan whose steps are complete. Throws FormatError, with the
  /// place in the plan at `cursor`, if an arena buffer is read before it is written.
  void FindLifetimes(const JsonCursor& cursor, const Plan& plan);
};

/// The symbols' sizes for a call with these arguments. Throws SizeError.
std::vector<std::int64_t> BindSizes(const Plan& plan_template,
                                    const std::vector<TensorSpec>& given);

/// Whether the template is meant for these sizes: none is above its anchor.
bool IsAnchorOf(const Plan& plan_template, const std::vector<std::int64_t>& sizes);

/// The plan for a size of each symbol. Throws SizeError where a condition does not hold, or the
/// devices' memory does not suffice.
std::shared_ptr<const Plan> Instantiate(const Plan& plan_template,
                                        const std::vector<std::int64_t>& sizes);

}  // namespace tvm_sched::runtime

#endif  // TVM_SCHED_RUNTIME_PLAN_TEMPLATE_H_
