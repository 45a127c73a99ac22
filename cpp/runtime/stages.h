// What this process did until its first output, for the timeline of a cold start.
#ifndef TVM_SCHED_RUNTIME_STAGES_H_
#define TVM_SCHED_RUNTIME_STAGES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/units.h"

namespace tvm_sched::runtime {

/// One piece of work, such as the opening of a GPU; several may have gone on at once.
struct Stage {
  std::string name;
  Clock::time_point begin, end;
  std::int64_t bytes = 0;  // that it moved, or 0
};

/// Note a stage, for the whole process. From any thread; beyond some thousand, nothing is noted.
void NoteStage(Stage stage);
/// Those that were noted so far, by their begin.
std::vector<Stage> NotedStages();

/// When this process began, by its entry in /proc, in steps of a hundredth of a second; now where
/// there is none.
Clock::time_point ProcessStart();

/// Notes the time of a scope, unless an exception ends it.
class StageTimer {
 public:
  explicit StageTimer(std::string name);
  ~StageTimer();
  StageTimer(const StageTimer&) = delete;
  StageTimer& operator=(const StageTimer&) = delete;

 private:
  std::string name_;
  Clock::time_point begin_;
  int exceptions_;
};

}  // namespace tvm_sched::runtime

#endif  // TVM_SCHED_RUNTIME_STAGES_H_
