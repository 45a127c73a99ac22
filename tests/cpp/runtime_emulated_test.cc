// The emulated backend: what it measures never undercuts the plan.
#include <gtest/gtest.h>

#include "runtime/emulated/emulated_backend.h"
#include "runtime/executor.h"
#include "runtime_plans.h"

namespace tvm_sched::runtime {
namespace {

using testing::PlanBuilder;

/// Two queues that wait for each other in turns, 20 steps of 100 us.
std::shared_ptr<const Plan> PingPong() {
  PlanBuilder builder(1, 2);
  std::vector<int> before;
  for (int i = 0; i < 20; ++i) before = {builder.Kernel(i % 2, {}, {}, before, 100'000)};
  return builder.Build();
}

TEST(Emulated, RunIsNeverShorterThanItsCriticalPath) {
  auto plan = PingPong();
  Executor executor(plan);
  EmulatedBackend backend(3.0);
  const auto began = Clock::now();
  const RunRecord record = executor.Run(backend, {}, nullptr);
  EXPECT_GE(Clock::now() - began, 3 * plan->CriticalLength());
  EXPECT_GE(record.latency, plan->CriticalLength());
  EXPECT_GE(record.wall, record.latency);
  for (std::size_t i = 1; i < record.steps.size(); ++i) {
    EXPECT_GE(record.steps[i].start, record.steps[i - 1].end);
  }
}

TEST(Emulated, QueuesRunSideBySideAndInOrder) {
  PlanBuilder builder(1, 2);
  for (int i = 0; i < 4; ++i) builder.Kernel(i % 2, {}, {}, {}, 2'000'000);
  auto plan = builder.Build();
  EmulatedBackend backend(1.0);
  const RunRecord record = Executor(plan).Run(backend, {}, nullptr);
  EXPECT_EQ(plan->CriticalLength(), Nanoseconds(4'000'000));
  for (int i = 2; i < 4; ++i) EXPECT_GE(record.steps[i].start, record.steps[i - 2].end);
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(record.steps[i].end - record.steps[i].start, Nanoseconds(2'000'000));
  }
}

TEST(Emulated, StopEndsALongWait) {
  PlanBuilder builder(1, 1);
  builder.Kernel(0, {}, {}, {}, 2'000'000'000);
  EmulatedBackend backend(1000.0);  // half an hour if the stop does not work
  EXPECT_THROW(
      Executor(builder.Build()).Run(backend, {}, [] { throw std::logic_error("interrupt"); }),
      std::logic_error);
}

TEST(Emulated, ChosenScaleFollowsItsFormula) {
  // Critical length 2 ms, median 100 us: half a second asks for 250.
  EXPECT_DOUBLE_EQ(ChooseScale(*PingPong()), 250.0);
  // A run of ten seconds goes at its own speed.
  PlanBuilder slow(1, 1);
  slow.Kernel(0, {}, {}, {}, 2'000'000'000);
  for (int i = 0; i < 4; ++i) slow.Kernel(0, {}, {}, {}, 2'000'000'000);
  EXPECT_DOUBLE_EQ(ChooseScale(*slow.Build()), 1.0);
  // Many short steps: 1 us each, 4 ms in all: 250 for them, within three seconds.
  PlanBuilder fine(1, 1);
  for (int i = 0; i < 4000; ++i) fine.Kernel(0, {}, {}, {}, 1000);
  EXPECT_DOUBLE_EQ(ChooseScale(*fine.Build()), 250.0);
  // Nothing to wait for.
  PlanBuilder nothing(1, 1);
  nothing.Kernel(0, {}, {}, {}, 0);
  EXPECT_DOUBLE_EQ(ChooseScale(*nothing.Build()), 1.0);
}

}  // namespace
}  // namespace tvm_sched::runtime
