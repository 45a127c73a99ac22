// What a call does beside the first plan, as plain data: it runs later segments, branches and loops
// that data decide. docs/formats/plan.md defines it.
#ifndef TVM_SCHED_RUNTIME_PROGRAM_H_
#define TVM_SCHED_RUNTIME_PROGRAM_H_

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <vector>

#include "runtime/json_cursor.h"
#include "runtime/plan.h"

namespace tvm_sched::runtime {

/// Value `from` of a call becomes value `to`; moves of one list happen at once.
struct Move {
  int from;
  int to;
};

/// A result of a loop: `from` of each iteration, stacked along a new first axis. `spec` is the type
/// of one part; 0 stands for sizes that are not known, which count where there is no iteration.
struct Stack {
  int from;
  int to;
  TensorSpec spec;
};

struct Instruction;

struct Block {
  std::vector<Instruction> steps;
  std::vector<Move> moves;  // after the steps
};

enum class InstructionKind { kRun, kIf, kLoop };

struct Instruction {
  InstructionKind kind = InstructionKind::kRun;
  int plan = 0;           // of kRun: that it runs
  std::vector<int> to{};  // of kRun: the values that its outputs become
  int condition = -1;     // of kIf: its value
  int most = -1;          // of kLoop: the number of iterations at most, or -1
  /// Another limit of it.
  std::int64_t trips = std::numeric_limits<std::int64_t>::max();
  int going = -1;      // of kLoop: whether there is a first iteration, or -1
  int again = -1;      // of kLoop: whether there is another iteration, or -1
  int iteration = -1;  // of kLoop: the number of the iteration that the body finds, or -1
  std::vector<Move> start{};
  std::vector<Stack> stacks{};
  std::vector<Block> blocks{};  // of kIf: of true and false; of kLoop: its body
};

/// Values of a call: its arguments, the outputs of the first plan, then those that steps write.
struct Program {
  Block block;
  int values = 0;
};

/// Read a program, or make the one of an artifact without: all later segments in their order.
/// Throws FormatError where a step reads a value that no step before it has written.
Program ReadProgram(const std::optional<JsonCursor>& cursor,
                    const std::vector<std::shared_ptr<const Plan>>& plans);

}  // namespace tvm_sched::runtime

#endif  // TVM_SCHED_RUNTIME_PROGRAM_H_
