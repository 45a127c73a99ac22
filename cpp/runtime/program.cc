#include "runtime/program.h"

#include <algorithm>
#include <string>
#include <utility>

#include "runtime/plan_reader.h"

namespace tvm_sched::runtime {

namespace {

constexpr std::size_t kMostValues = 1 << 20;

int ValueIn(const JsonCursor& cursor) { return cursor.Index(kMostValues, "values"); }

int OptionalValue(const JsonCursor& cursor, const char* field) {
  const auto value = cursor.OptionalField(field);
  return value ? ValueIn(*value) : -1;
}

/// Reads steps and checks that each value is there before it is read.
class ProgramReader {
 public:
  explicit ProgramReader(const std::vector<std::shared_ptr<const Plan>>& plans) : plans_(plans) {
    written_.resize(plans.front()->arguments.size() + plans.front()->outputs.size(), true);
  }

  Block ReadBlock(const JsonCursor& cursor) {
    cursor.AllowFields({"steps", "moves"});
    Block block;
    for (const JsonCursor& item : cursor.Field("steps").Items()) {
      block.steps.push_back(ReadStep(item));
    }
    if (auto moves = cursor.OptionalField("moves")) block.moves = ReadMoves(*moves);
    return block;
  }

  /// Values that have to be there where a plan begins.
  void CheckTakes(const JsonCursor* cursor, const Plan& plan) {
    for (const Taken& taken : plan.takes) {
      if (Has(taken.value)) continue;
      const std::string text =
          "plan \"" + plan.name + "\": value " + std::to_string(taken.value) + " is not there yet";
      if (cursor) cursor->Fail(text);
      throw FormatError("$: " + text);
    }
  }

  void Write(int value) {
    if (static_cast<std::size_t>(value) >= written_.size()) written_.resize(value + 1);
    written_[value] = true;
    values_ = std::max(values_, value + 1);
  }
  int values() const { return std::max(values_, static_cast<int>(written_.size())); }

 private:
  bool Has(int value) const {
    return static_cast<std::size_t>(value) < written_.size() && written_[value];
  }

  void Need(const JsonCursor& cursor, int value) const {
    if (value >= 0 && !Has(value)) {
      cursor.Fail("value " + std::to_string(value) + " is not there yet");
    }
  }

  std::vector<Move> ReadMoves(const JsonCursor& cursor) {
    std::vector<Move> moves;
    for (const JsonCursor& item : cursor.Items()) {
      const std::vector<JsonCursor> pair = item.Items();
      if (pair.size() != 2) item.Unexpected("two values");
      moves.push_back({ValueIn(pair[0]), ValueIn(pair[1])});
      Need(item, moves.back().from);
    }
    for (const Move& move : moves) Write(move.to);
    return moves;
  }

  Instruction ReadStep(const JsonCursor& cursor) {
    if (cursor.OptionalField("run")) return ReadRun(cursor);
    return cursor.OptionalField("if") ? ReadIf(cursor) : ReadLoop(cursor);
  }

  Instruction ReadRun(const JsonCursor& cursor) {
    cursor.AllowFields({"run", "to"});
    Instruction step{InstructionKind::kRun};
    const std::string name = cursor.Field("run").Name();
    const auto found = std::find_if(plans_.begin(), plans_.end(),
                                    [&name](const auto& plan) { return plan->name == name; });
    if (found == plans_.end() || !(*found)->later) {
      cursor.Field("run").Unexpected("the name of a plan with takes");
    }
    step.plan = static_cast<int>(found - plans_.begin());
    CheckTakes(&cursor, **found);
    for (const JsonCursor& item : cursor.Field("to").Items()) step.to.push_back(ValueIn(item));
    if (step.to.size() != (*found)->outputs.size()) {
      cursor.Field("to").Fail("expected a value for each of the plan's " +
                              std::to_string((*found)->outputs.size()) + " outputs");
    }
    for (const int value : step.to) Write(value);
    return step;
  }

  Instruction ReadIf(const JsonCursor& cursor) {
    cursor.AllowFields({"if", "then", "else"});
    Instruction step{InstructionKind::kIf};
    step.condition = ValueIn(cursor.Field("if"));
    Need(cursor, step.condition);
    const std::vector<bool> before = written_;
    step.blocks.push_back(ReadBlock(cursor.Field("then")));
    const std::vector<bool> then = std::exchange(written_, before);
    step.blocks.push_back(ReadBlock(cursor.Field("else")));
    written_.resize(std::max(written_.size(), then.size()));
    for (std::size_t k = 0; k < written_.size(); ++k) {
      written_[k] = written_[k] && k < then.size() && then[k];  // both branches must have run it
    }
    return step;
  }

  Instruction ReadLoop(const JsonCursor& cursor) {
    cursor.AllowFields({"loop", "trips", "most", "while", "again", "iteration", "start", "stack"});
    Instruction step{InstructionKind::kLoop};
    const auto trips = cursor.OptionalField("trips");
    if (trips) step.trips = trips->NonNegative();
    step.most = OptionalValue(cursor, "most");
    step.going = OptionalValue(cursor, "while");
    Need(cursor, step.most);
    Need(cursor, step.going);
    if (auto start = cursor.OptionalField("start")) step.start = ReadMoves(*start);
    const std::vector<bool> before = written_;  // the body may never run
    if ((step.iteration = OptionalValue(cursor, "iteration")) >= 0) Write(step.iteration);
    step.blocks.push_back(ReadBlock(cursor.Field("loop")));
    step.again = OptionalValue(cursor, "again");
    Need(cursor, step.again);
    if (step.most < 0 && step.again < 0 && !trips) {
      cursor.Fail("a loop ends by \"trips\", \"most\" or \"again\", and has none");
    }
    if (auto stacks = cursor.OptionalField("stack")) {
      for (const JsonCursor& item : stacks->Items()) step.stacks.push_back(ReadStack(item));
    }
    written_ = before;
    for (const Stack& stack : step.stacks) Write(stack.to);
    return step;
  }

  Stack ReadStack(const JsonCursor& cursor) {
    cursor.AllowFields({"value", "to", "shape", "dtype"});
    Stack stack{ValueIn(cursor.Field("value")), ValueIn(cursor.Field("to")),
                ReadTensorSpec(cursor, nullptr)};
    Need(cursor, stack.from);
    return stack;
  }

  const std::vector<std::shared_ptr<const Plan>>& plans_;
  std::vector<bool> written_;
  int values_ = 0;
};

}  // namespace

Program ReadProgram(const std::optional<JsonCursor>& cursor,
                    const std::vector<std::shared_ptr<const Plan>>& plans) {
  ProgramReader reader(plans);
  Program program;
  if (cursor) {
    program.block = reader.ReadBlock(*cursor);
  } else {
    for (std::size_t p = 0; p < plans.size(); ++p) {
      if (!plans[p]->later) continue;
      reader.CheckTakes(nullptr, *plans[p]);
      Instruction step{InstructionKind::kRun, static_cast<int>(p)};
      for (std::size_t k = 0; k < plans[p]->outputs.size(); ++k) {
        step.to.push_back(reader.values());
        reader.Write(step.to.back());
      }
      program.block.steps.push_back(std::move(step));
    }
  }
  program.values = reader.values();
  return program;
}

}  // namespace tvm_sched::runtime
