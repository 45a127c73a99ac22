#include "runtime/cuda/streams_of_steps.h"

#include <algorithm>
#include <stdexcept>

namespace tvm_sched::runtime::cuda {

namespace {

int DeviceOf(const Plan& plan, int buffer) {
  const Source& source = plan.buffers[buffer].source;
  switch (source.kind) {
    case SourceKind::kArena:
      return source.index;
    case SourceKind::kState:
    case SourceKind::kNextState:
      return plan.states[source.index].device;
    default:
      return kHostMemory;
  }
}

int DeviceOfKernel(const Plan& plan, int index) {
  const Step& step = plan.steps[index];
  // A kernel that reads and writes host memory alone has no other sign of it.
  int device = plan.queue_devices[step.queue];
  for (const std::vector<int>* list : {&step.outputs, &step.inputs}) {
    for (int buffer : *list) {
      const int other = DeviceOf(plan, buffer);
      if (device == kHostMemory) device = other;
      if (other == kHostMemory || other == device) continue;
      throw std::invalid_argument(plan.DescribeStep(index) + " touches memory of devices \"" +
                                  plan.devices[device].name + "\" and \"" +
                                  plan.devices[other].name + "\"; a kernel may touch one");
    }
  }
  if (device == kHostMemory) {
    throw std::invalid_argument(plan.DescribeStep(index) + " touches no device's memory, and its " +
                                "queue is no device's: there is no GPU to run it on");
  }
  return device;
}

class Maker {
 public:
  Maker(const Plan& plan, const std::vector<int>& gpus) : plan_(plan), gpus_(gpus) {}

  StepRoutes Make() {
    for (std::size_t index = 0; index < plan_.steps.size(); ++index) {
      result_.steps.push_back(Route(static_cast<int>(index)));
    }
    return std::move(result_);
  }

 private:
  StepRoute Route(int index) {
    const Step& step = plan_.steps[index];
    StepRoute route{step.queue};
    int device = 0;
    switch (step.kind) {
      case StepKind::kKernel:
        device = DeviceOfKernel(plan_, index);
        break;
      case StepKind::kCopy:
        route.from = DeviceOf(plan_, step.inputs[0]);
        route.to = DeviceOf(plan_, step.outputs[0]);
        device = std::max(route.to != kHostMemory ? route.to : route.from, 0);
        break;
      case StepKind::kRead:  // of plans for CPUs alone
      case StepKind::kHostRead:
        break;  // it moves nothing; any stream keeps its place in the order
    }
    route.stream = StreamFor(step.queue, device, step.kind != StepKind::kKernel);
    return route;
  }

  int StreamFor(int queue, int device, bool copies) {
    auto& streams = result_.streams;
    for (std::size_t s = 0; s < streams.size(); ++s) {
      if (streams[s].queue == queue && gpus_[streams[s].device] == gpus_[device]) {
        return static_cast<int>(s);
      }
    }
    streams.push_back({queue, device, copies});
    return static_cast<int>(streams.size()) - 1;
  }

  const Plan& plan_;
  const std::vector<int>& gpus_;
  StepRoutes result_;
};

}  // namespace

StepRoutes MakeStepRoutes(const Plan& plan, const std::vector<int>& gpus) {
  return Maker(plan, gpus).Make();
}

}  // namespace tvm_sched::runtime::cuda
