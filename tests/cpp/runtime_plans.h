// Plans for tests of the runtime, built by hand.
#ifndef TVM_SCHED_TESTS_CPP_RUNTIME_PLANS_H_
#define TVM_SCHED_TESTS_CPP_RUNTIME_PLANS_H_

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runtime/executor.h"
#include "runtime/plan.h"

namespace tvm_sched::runtime::testing {

/// Builds a plan whose buffers are one int64 each, on arenas of its devices.
class PlanBuilder {
 public:
  PlanBuilder(int devices, int queues) {
    plan_.name = "test";
    for (int d = 0; d < devices; ++d) plan_.devices.push_back({"dev" + std::to_string(d), {0}});
    for (int q = 0; q < queues; ++q) plan_.queues.push_back("queue" + std::to_string(q));
    plan_.queue_devices.assign(queues, -1);
  }

  int AddBuffer(int device) {
    TensorSpec spec{"b", {1}, {kDLInt, 64, 1}};
    plan_.buffers.push_back({spec, {SourceKind::kArena, device, plan_.devices[device].arena}});
    plan_.devices[device].arena.count += 64;
    return static_cast<int>(plan_.buffers.size()) - 1;
  }

  int Kernel(int queue, std::vector<int> inputs, std::vector<int> outputs, std::vector<int> waits,
             int nanoseconds = 1000) {
    Step step{};
    step.kind = StepKind::kKernel;
    step.function = "f";
    return Add(std::move(step), queue, std::move(inputs), std::move(outputs), std::move(waits),
               nanoseconds);
  }

  int Copy(int queue, int from, int to, std::vector<int> waits, int nanoseconds = 1000) {
    Step step{};
    step.kind = StepKind::kCopy;
    return Add(std::move(step), queue, {from}, {to}, std::move(waits), nanoseconds);
  }

  std::shared_ptr<const Plan> Build() const { return std::make_shared<const Plan>(plan_); }

 private:
  int Add(Step step, int queue, std::vector<int> inputs, std::vector<int> outputs,
          std::vector<int> waits, int nanoseconds) {
    const int index = static_cast<int>(plan_.steps.size());
    step.queue = queue;
    step.name = "op" + std::to_string(index);
    step.inputs = std::move(inputs);
    step.outputs = std::move(outputs);
    step.waits = std::move(waits);
    step.duration = Nanoseconds(nanoseconds);
    step.event_json = "null";
    plan_.steps.push_back(std::move(step));
    return index;
  }

  Plan plan_;
};

/// Arenas and bindings of such a plan; kernels are filled in by the test.
struct Memory {
  Memory(const Plan& plan, Backend& backend) {
    for (std::size_t d = 0; d < plan.devices.size(); ++d) {
      arenas.push_back(backend.Allocate(static_cast<int>(d), plan.devices[d].arena));
    }
    for (const Buffer& buffer : plan.buffers) {
      bindings.buffers.push_back(arenas[buffer.source.index].get() + buffer.source.offset.count);
    }
    bindings.kernels.resize(plan.steps.size());
  }

  std::int64_t& At(int buffer) {
    return *reinterpret_cast<std::int64_t*>(bindings.buffers[buffer]);
  }

  std::vector<std::shared_ptr<std::byte>> arenas;
  Bindings bindings;
};

}  // namespace tvm_sched::runtime::testing

#endif  // TVM_SCHED_TESTS_CPP_RUNTIME_PLANS_H_
