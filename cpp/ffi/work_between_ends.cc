// Binds "tvm_sched.work_between_ends".
#include "search/work_between_ends.h"

#include <tvm/ffi/tvm_ffi.h>

#include <vector>

#include "ffi/arrays.h"
#include "runtime/throw.h"

namespace tvm_sched {
namespace {

/// \param heads, tails Two rows each: least times anywhere, and on devices that run no seed.
/// \param seeds Devices that may run a seed of the heads, and of the tails.
/// \return Bound in nanoseconds, position of its threshold, number of its operators.
tvm::ffi::Tensor BetweenEnds(Floats work, Floats heads, Floats tails, Integers seeds,
                             Floats weights, Integers order, Floats thresholds, double rounding) {
  const auto each = Elements<double>("work", work);
  const std::size_t operators = each.size();
  const auto counts = Elements("seeds", seeds, 2);
  const auto side = [&](const char* name, const Floats& rows, std::int64_t number) {
    const auto both = Elements<double>(name, rows, 2 * operators);
    TVM_SCHED_CHECK(number >= 0, ValueError) << number << " devices run a seed of " << name;
    return search::Side{both.first(operators), both.subspan(operators),
                        static_cast<std::size_t>(number)};
  };
  const auto listed = Elements("order", order);
  for (std::int64_t op : listed) {
    TVM_SCHED_CHECK(0 <= op && op < static_cast<std::int64_t>(operators), IndexError)
        << "operator " << op << " of " << operators;
  }
  const search::WorkArgument best =
      search::WorkBetweenEnds(each, side("heads", heads, counts[0]),
                              side("tails", tails, counts[1]), Elements<double>("weights", weights),
                              listed, Elements<double>("thresholds", thresholds), rounding);
  return NewRow<double>(std::vector<double>{best.ns, static_cast<double>(best.threshold),
                                            static_cast<double>(best.operators)});
}

TVM_FFI_STATIC_INIT_BLOCK() {
  tvm::ffi::reflection::GlobalDef().def("tvm_sched.work_between_ends", BetweenEnds);
}

}  // namespace
}  // namespace tvm_sched
