// JSON that configure() reads and timeline() writes.
#ifndef TVM_SCHED_FFI_RUNTIME_TIMELINE_H_
#define TVM_SCHED_FFI_RUNTIME_TIMELINE_H_

#include <tvm/ffi/string.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/executor.h"
#include "runtime/json_cursor.h"
#include "runtime/plan.h"
#include "runtime/residency.h"

namespace tvm_sched::runtime {

/// What configure() sets.
struct RunOptions {
  bool trace = false;
  bool times_only = false;                // emulated devices compute no values
  std::optional<double> emulation_scale;  // nothing: chosen for each plan
  Resident resident = 0.0;
  int instances = 1;            // runs that may proceed at once
  Nanoseconds watchdog{0};      // 0: none
  std::vector<int> devices;     // GPU of each of the plan's devices; empty: in their order
  bool graph = false;           // warm runs on GPUs replay a captured graph
  bool in_turn = false;         // runs on GPUs at once: kernels after those of the run before
  int kept_sizes = 32;          // last sizes of a template whose plans are kept
  bool pinned_outputs = false;  // callers of runs on GPUs get the pinned memory itself
};

/// Read options; those that are not there keep their value. Throws FormatError.
RunOptions ReadOptions(const JsonCursor& cursor, RunOptions options);

/// A run that ended well.
struct LastRun {
  std::shared_ptr<const Plan> plan;
  RunRecord record;
  std::vector<bool> skipped;  // by step, or empty
  double scale = 1.0;
  bool traced = false;
};

/// JSON of a call's runs, one for each segment of the model: `{"plan", "backend", "scale",
/// "latency_ns", "wall_ns", "largest_delay_ns", "events":
/// [{"step", "queue", "start_ns", "end_ns", "event"}]}`; times from the start of the run, in the
/// plan's time; "queue" is the queue's name and "event" what the plan says of the step.
tvm::ffi::String WriteTimeline(const std::vector<LastRun>& runs);

/// JSON: `[{"name", "start_ns", "end_ns", "bytes"}]`, the stages that this process has noted, from
/// its start.
tvm::ffi::String WriteStages();

}  // namespace tvm_sched::runtime

#endif  // TVM_SCHED_FFI_RUNTIME_TIMELINE_H_
