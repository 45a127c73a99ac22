#include "ffi/runtime/prepare.h"

namespace tvm_sched::runtime {

namespace ffi = tvm::ffi;

ParameterInputs ParametersOfKernels(const Plan& plan, const ParameterStore& parameters) {
  ParameterInputs result;
  for (const Step& step : plan.steps) {
    if (step.kind != StepKind::kKernel) continue;
    ffi::Array<ffi::Optional<ffi::Tensor>> inputs;
    bool any = false;
    for (int buffer : step.inputs) {
      const Source& source = plan.buffers[buffer].source;
      const bool parameter = source.kind == SourceKind::kParameter;
      any |= parameter;
      inputs.push_back(
          parameter ? ffi::Optional<ffi::Tensor>(parameters.Get(plan.parameters[source.index].name))
                    : std::nullopt);
    }
    if (any) result.Set(step.function, std::move(inputs));
  }
  return result;
}

}  // namespace tvm_sched::runtime
