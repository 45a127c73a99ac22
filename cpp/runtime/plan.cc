// Small queries on a plan.
#include "runtime/plan.h"

#include <tvm/ffi/dtype.h>

#include <algorithm>

namespace tvm_sched::runtime {

const char* BackendName(BackendKind backend) {
  switch (backend) {
    case BackendKind::kCpu:
      return "cpu";
    case BackendKind::kEmulated:
      return "emulated";
    case BackendKind::kCuda:
      break;
  }
  return "cuda";
}

bool SameDtype(DLDataType a, DLDataType b) {
  return a.code == b.code && a.bits == b.bits && a.lanes == b.lanes;
}

std::string DtypeName(DLDataType dtype) {
  if (dtype.code == kDLComplex && dtype.lanes == 1) return "complex" + std::to_string(dtype.bits);
  try {
    return tvm::ffi::DLDataTypeToString(dtype);
  } catch (const tvm::ffi::Error&) {
    return "DLPack type " + std::to_string(dtype.code) + " of " + std::to_string(dtype.bits) +
           " bits and " + std::to_string(dtype.lanes) + " lanes";
  }
}

std::string ShapeName(const std::vector<std::int64_t>& shape) {
  std::string text = "[";
  for (std::size_t i = 0; i < shape.size(); ++i) {
    text += (i ? ", " : "") + std::to_string(shape[i]);
  }
  return text + "]";
}

Bytes TensorSpec::size() const {
  std::int64_t elements = 1;
  for (std::int64_t extent : shape) elements *= extent;
  return {(elements * dtype.bits * dtype.lanes + 7) / 8};
}

std::string TensorSpec::ToString() const { return DtypeName(dtype) + ShapeName(shape); }

bool TensorSpec::SameType(const TensorSpec& other) const {
  return SameDtype(dtype, other.dtype) && shape == other.shape;
}

std::vector<std::vector<int>> Plan::StepsOfQueues() const {
  std::vector<std::vector<int>> result(queues.size());
  for (std::size_t step = 0; step < steps.size(); ++step) {
    result[steps[step].queue].push_back(static_cast<int>(step));
  }
  return result;
}

bool Plan::ReadsFile() const {
  return std::any_of(steps.begin(), steps.end(),
                     [](const Step& step) { return step.kind == StepKind::kRead; });
}

Nanoseconds Plan::CriticalLength() const {
  std::vector<Nanoseconds> step_end(steps.size());
  std::vector<Nanoseconds> queue_end(queues.size(), Nanoseconds{0});
  Nanoseconds last{0};
  for (std::size_t i = 0; i < steps.size(); ++i) {
    Nanoseconds start = queue_end[steps[i].queue];
    for (int wait : steps[i].waits) start = std::max(start, step_end[wait]);
    step_end[i] = queue_end[steps[i].queue] = start + steps[i].duration;
    last = std::max(last, step_end[i]);
  }
  return last;
}

std::string Plan::DescribeStep(int index) const {
  const Step& step = steps[index];
  std::string text = step.kind == StepKind::kKernel ? "operator \"" : "transfer of \"";
  text +=
      step.name + "\" (step " + std::to_string(index) + ", queue \"" + queues[step.queue] + "\"";
  // A step does not name its device; where it writes, or else reads, in an arena tells it.
  for (const std::vector<int>* list : {&step.outputs, &step.inputs}) {
    for (int buffer : *list) {
      const Source& source = buffers[buffer].source;
      if (source.kind == SourceKind::kArena) {
        return text + ", device \"" + devices[source.index].name + "\")";
      }
    }
  }
  return text + ")";
}

}  // namespace tvm_sched::runtime
