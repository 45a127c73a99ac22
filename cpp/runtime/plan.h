// The execution plan, the executor's input, as plain data. docs/formats/plan.md defines it.
#ifndef TVM_SCHED_RUNTIME_PLAN_H_
#define TVM_SCHED_RUNTIME_PLAN_H_

#include <dlpack/dlpack.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/cores.h"
#include "runtime/units.h"

namespace tvm_sched::runtime {

enum class BackendKind { kCpu, kEmulated, kCuda };
enum class SourceKind { kArena, kArgument, kParameter, kOutput, kState, kNextState };
enum class StepKind { kKernel, kCopy, kHostRead, kRead };
enum class Calling { kDps, kPacked };

struct TemplateSizes;

struct TensorSpec {
  std::string name;
  std::vector<std::int64_t> shape;
  DLDataType dtype{};

  Bytes size() const;
  /// "float32[1, 3, 224, 224]", for messages.
  std::string ToString() const;
  /// Same shape and data type; names may differ.
  bool SameType(const TensorSpec& other) const;
};

struct Device {
  std::string name;
  Bytes arena;
  Bytes extra{};  // beside the arena: states, and workspaces of libraries
  /// That libraries may take on each stream of its kernels; without a value, as much as is usual.
  std::optional<Bytes> workspace{};
  std::optional<Bytes> memory{};  // that it has
};

/// A tensor that a run leaves for the next one, in a device's memory. It has two places: a run
/// reads one (kState) and writes the other (kNextState), and they change places when it has ended
/// well. A state in place has one place for both: its kernel writes the parts that change.
struct State {
  TensorSpec spec;
  int device = 0;
  bool in_place = false;
};

/// Where a buffer's memory is: in a device's arena, or tensor `index` of one of the lists.
struct Source {
  SourceKind kind = SourceKind::kArena;
  int index = 0;  // of the device, argument, parameter, output or state
  Bytes offset;   // in the arena
};

struct Buffer {
  TensorSpec spec;
  Source source;
};

struct Step {
  int queue = 0;
  StepKind kind = StepKind::kKernel;
  std::string name;
  std::string function;  // of a kernel
  Calling calling = Calling::kDps;
  std::vector<int> inputs;
  std::vector<int> outputs;
  std::vector<int> waits;
  Nanoseconds duration{0};
  std::vector<std::int64_t> sizes;  // of a kernel: given to it after its tensors
  Share cores;                      // of a kernel: the part of the cores that compute it
  bool evict = false;      // of a copy: the parameter that it brings leaves after its last reader
  std::string event_json;  // returned with the timeline as it came
};

/// What an argument of a later segment is: a value, or a tensor without content whose length is an
/// element or a dimension of one.
struct Taken {
  int value;
  std::optional<int> element{};
  std::optional<int> dimension{};
};

struct Plan {
  std::string name;
  BackendKind backend = BackendKind::kCpu;
  /// Cores that it was compiled to use, 0: all that there are; and those that it has.
  int threads = 0;
  int cores = Cores();
  std::vector<Device> devices;
  std::vector<std::string> queues;
  std::vector<int> queue_devices;  // of each queue: the device whose kernels it runs, or -1
  std::vector<TensorSpec> arguments;
  std::vector<TensorSpec> parameters;
  std::vector<Buffer> buffers;
  std::vector<TensorSpec> outputs;
  std::vector<State> states;
  std::vector<Step> steps;
  /// Pieces of the file of parameters that are asked of the disk at once, where steps read it.
  int queue_depth = 1;
  /// Of a template, from which Instantiate makes plans: what its sizes depend on. Else null.
  std::shared_ptr<const TemplateSizes> open;
  /// Of a later segment of a model, of each argument: which of the call's values it is (`Program`).
  std::vector<Taken> takes;
  bool later = false;

  /// The steps of each queue in their order.
  std::vector<std::vector<int>> StepsOfQueues() const;
  /// Whether steps read the file of parameters.
  bool ReadsFile() const;
  /// The planned length of a run: longest path over waits and queue orders.
  Nanoseconds CriticalLength() const;
  /// `operator "conv1" (step 3, queue "cpu0", device "cpu0")`, for messages.
  std::string DescribeStep(int step) const;
};

/// "cpu", "emulated" or "cuda", as plans write it.
const char* BackendName(BackendKind backend);

bool SameDtype(DLDataType a, DLDataType b);
/// "float32", "bool", "bfloat16", ...; a description of types without a name of tvm_ffi's. Never
/// throws, for it is needed to refuse such types.
std::string DtypeName(DLDataType dtype);
/// "[1, 3, 224, 224]"
std::string ShapeName(const std::vector<std::int64_t>& shape);

}  // namespace tvm_sched::runtime

#endif  // TVM_SCHED_RUNTIME_PLAN_H_
