// Any bytes as a list of plans: read, or refused with a FormatError.
#include <cstddef>
#include <cstdint>
#include <string>

#include "runtime/plan_reader.h"
#include "runtime/residency.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace tvm_sched::runtime;
  try {
    for (const Plan& plan : ReadPlans(std::string(reinterpret_cast<const char*>(data), size))) {
      plan.StepsOfQueues();
      plan.CriticalLength();
      for (std::size_t i = 0; i < plan.steps.size(); ++i) plan.DescribeStep(static_cast<int>(i));
      StepsSkippedWhenWarm(plan, 0.5);
    }
  } catch (const FormatError&) {
  }
  return 0;
}
