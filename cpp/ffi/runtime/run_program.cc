#include "ffi/runtime/run_program.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "ffi/runtime/process.h"
#include "ffi/runtime/tensors.h"
#include "runtime/throw.h"

namespace tvm_sched::runtime {

using tvm::ffi::Tensor;

namespace {

/// The argument of a later segment: a value, or a tensor without content of the length that an
/// element or a dimension of a value says.
Tensor Take(const Taken& taken, const std::vector<Tensor>& values, const TensorSpec& wanted) {
  const Tensor& value = values[taken.value];
  if (!taken.element && !taken.dimension) return value;
  TensorSpec spec = wanted;
  const TensorSpec given = SpecOf(value);
  const bool of_shape = taken.dimension && *taken.dimension < static_cast<int>(given.shape.size());
  const bool of_values = taken.element && *taken.element < value.numel() &&
                         given.dtype.code == kDLInt && given.dtype.bits == 64;
  if ((!of_shape && !of_values) || spec.shape.size() != 1) {
    TVM_SCHED_THROW(ValueError) << "the size \"" << wanted.name
                                << "\" is not a dimension, or an element of an int64 tensor";
  }
  if (of_shape) {
    spec.shape[0] = given.shape[*taken.dimension];
  } else {
    const Tensor ready =
        ReadyForKernel(value, "argument \"" + wanted.name + "\"");  // without strides
    spec.shape[0] = static_cast<const std::int64_t*>(ready.data_ptr())[*taken.element];
  }
  if (spec.shape[0] < 0) {
    TVM_SCHED_THROW(ValueError) << "the size \"" << wanted.name << "\" that the model computes is "
                                << spec.shape[0] << "; 0 or more is allowed";
  }
  alignas(kAlignment) static std::byte nothing[kAlignment];  // no kernel reads it
  return ViewTensor(spec, nullptr, nothing, DLDevice{kDLCPU, 0});
}

/// The first element of a condition or of a number of iterations.
std::int64_t NumberIn(const Tensor& tensor, const char* what) {
  const TensorSpec spec = SpecOf(tensor);
  if (tensor.numel() == 1) {
    const Tensor ready = ReadyForKernel(tensor, what);
    const void* data = ready.data_ptr();
    if (spec.dtype.code == kDLBool) return *static_cast<const std::uint8_t*>(data);
    if (spec.dtype.code == kDLInt && spec.dtype.bits == 64) {
      return *static_cast<const std::int64_t*>(data);
    }
  }
  TVM_SCHED_THROW(ValueError) << what << " is " << spec.ToString()
                              << "; one bool or int64 is allowed";
}

Tensor IterationNumber(std::int64_t number) {
  Tensor tensor = AllocateTensor({"iteration", {}, {kDLInt, 64, 1}});
  *static_cast<std::int64_t*>(tensor.data_ptr()) = number;
  return tensor;
}

/// Parts of one shape as one tensor, with their number as a new first dimension.
Tensor Stacked(const std::vector<Tensor>& parts, TensorSpec spec) {
  if (!parts.empty()) spec.shape = SpecOf(parts.front()).shape;
  const TensorSpec one = spec;
  spec.shape.insert(spec.shape.begin(), static_cast<std::int64_t>(parts.size()));
  Tensor result = AllocateTensor(spec);
  const auto bytes = static_cast<std::size_t>(one.size().count);
  std::byte* to = DataOf(result);
  for (const Tensor& part : parts) {
    if (!SpecOf(part).SameType(one)) {
      TVM_SCHED_THROW(ValueError) << "a loop collects results of one shape, and got "
                                  << one.ToString() << " and " << SpecOf(part).ToString();
    }
    if (bytes > 0) std::memcpy(to, ReadyForKernel(part, "a part").data_ptr(), bytes);
    to += bytes;
  }
  return result;
}

class ProgramRun {
 public:
  ProgramRun(const PlanList& plans, std::vector<Tensor>* values, const PlanRunner& run)
      : plans_(plans), values_(*values), run_(run) {}

  void Run(const Block& block) {
    for (const Instruction& step : block.steps) {
      if (step.kind == InstructionKind::kRun) {
        RunPlan(step);
      } else if (step.kind == InstructionKind::kIf) {
        const bool truth = NumberIn(values_[step.condition], "the condition of an if") != 0;
        const Block& taken = step.blocks[truth ? 0 : 1];
        Run(taken);
        MoveAll(taken.moves);
      } else {
        RunLoop(step);
      }
    }
  }

 private:
  void RunPlan(const Instruction& step) {
    const Plan& plan = *plans_[step.plan];
    std::vector<Tensor> taken;
    for (std::size_t i = 0; i < plan.takes.size(); ++i) {
      taken.push_back(Take(plan.takes[i], values_, plan.arguments[i]));
    }
    std::vector<Tensor> outputs = run_(step.plan, std::move(taken));
    for (std::size_t i = 0; i < outputs.size(); ++i) values_[step.to[i]] = std::move(outputs[i]);
  }

  void RunLoop(const Instruction& loop) {
    std::int64_t most = loop.trips;
    if (loop.most >= 0)
      most = std::min(most, NumberIn(values_[loop.most], "the trip count of a loop"));
    bool going = loop.going < 0 || NumberIn(values_[loop.going], "the condition of a loop") != 0;
    MoveAll(loop.start);
    std::vector<std::vector<Tensor>> parts(loop.stacks.size());
    for (std::int64_t i = 0; going && i < most; ++i) {
      Poll();
      if (loop.iteration >= 0) values_[loop.iteration] = IterationNumber(i);
      Run(loop.blocks[0]);
      going = loop.again < 0 || NumberIn(values_[loop.again], "the condition of a loop") != 0;
      for (std::size_t k = 0; k < parts.size(); ++k) {
        parts[k].push_back(values_[loop.stacks[k].from]);
      }
      MoveAll(loop.blocks[0].moves);
    }
    for (std::size_t k = 0; k < parts.size(); ++k) {
      values_[loop.stacks[k].to] = Stacked(parts[k], loop.stacks[k].spec);
    }
  }

  void MoveAll(const std::vector<Move>& moves) {
    std::vector<Tensor> moved;
    for (const Move& move : moves) moved.push_back(values_[move.from]);
    for (std::size_t k = 0; k < moves.size(); ++k) values_[moves[k].to] = std::move(moved[k]);
  }

  const PlanList& plans_;
  std::vector<Tensor>& values_;
  const PlanRunner& run_;
};

}  // namespace

void RunProgram(const Program& program, const PlanList& plans, std::vector<Tensor>* values,
                const PlanRunner& run) {
  values->resize(program.values);
  ProgramRun(plans, values, run).Run(program.block);
}

}  // namespace tvm_sched::runtime
