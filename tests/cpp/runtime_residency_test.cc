// Steps that a warm run leaves out, and the watchdog.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "runtime/cpu/cpu_backend.h"
#include "runtime/residency.h"
#include "runtime_plans.h"

namespace tvm_sched::runtime {
namespace {

using testing::Memory;
using testing::PlanBuilder;

/// Two parameters, loaded one after the other; the second one is copied on to another device.
Plan LoadedPlan() {
  PlanBuilder builder(2, 3);
  for (int b = 0; b < 5; ++b) builder.AddBuffer(b == 4 ? 1 : 0);
  builder.Copy(2, 0, 2, {});
  const int second = builder.Copy(2, 1, 3, {});
  const int on = builder.Copy(1, 3, 4, {second});
  builder.Kernel(0, {2, 4}, {}, {0, on});
  Plan plan = *builder.Build();
  for (int p = 0; p < 2; ++p) {
    plan.parameters.push_back(plan.buffers[p].spec);
    plan.parameters[p].name = "w" + std::to_string(p);
    plan.buffers[p].source = {SourceKind::kParameter, p, {0}};
  }
  return plan;
}

TEST(Residency, PartsAndNames) {
  const Plan plan = LoadedPlan();
  const std::vector<bool> none, first{true, false, false, false}, second{false, true, true, false};
  EXPECT_EQ(StepsSkippedWhenWarm(plan, 0.0), none);
  EXPECT_EQ(StepsSkippedWhenWarm(plan, 0.49), none);
  EXPECT_EQ(StepsSkippedWhenWarm(plan, 0.5), first);
  EXPECT_EQ(StepsSkippedWhenWarm(plan, 1.0), (std::vector<bool>{true, true, true, false}));
  EXPECT_EQ(StepsSkippedWhenWarm(plan, std::vector<std::string>{"w1", "other"}), second);
}

TEST(Residency, SharedBytesCannotRemain) {
  Plan plan = LoadedPlan();
  plan.buffers.push_back(plan.buffers[2]);
  EXPECT_THROW(StepsSkippedWhenWarm(plan, 1.0), std::invalid_argument);
  EXPECT_NO_THROW(StepsSkippedWhenWarm(plan, std::vector<std::string>{"w1"}));
}

TEST(Residency, WhatLiesElsewhereLeavesNoGap) {
  Plan plan = LoadedPlan();  // buffers at 0, 64, 128, 192 of device 0, at 0 of device 1
  plan.buffers.push_back(plan.buffers[2]);
  plan.buffers.back().source.offset = {512};
  plan.buffers.push_back(plan.buffers.back());  // shares the bytes of the one before
  const std::vector<bool> elsewhere = BroughtBy(plan, {false, true, true, false});
  EXPECT_EQ(elsewhere, (std::vector<bool>{false, false, false, true, true, false, false}));
  const ArenaLayout layout = CloseGaps(plan, elsewhere);
  EXPECT_EQ(layout.offsets[2].count, 128) << "a gap below 256 bytes stays";
  EXPECT_EQ(layout.offsets[5].count, 256) << "at a multiple of 256, as before";
  EXPECT_EQ(layout.offsets[6].count, 256);
  EXPECT_EQ(layout.sizes[0].count, 256 + 8);
  EXPECT_EQ(layout.sizes[1].count, 0);
}

TEST(Executor, SkippedStepsAreNotDoneAndNotAwaited) {
  PlanBuilder builder(1, 2);
  const int buffer = builder.AddBuffer(0);
  const int first = builder.Kernel(0, {}, {buffer}, {});
  const int second = builder.Kernel(0, {}, {buffer}, {});
  builder.Kernel(1, {}, {buffer}, {second});
  auto plan = builder.Build();
  CpuBackend backend;
  Memory memory(*plan, backend);
  std::atomic<int> done{0};
  std::atomic<bool> third{false};
  memory.bindings.kernels[first] = [&] {
    while (!third.load()) std::this_thread::yield();
    ++done;
  };
  memory.bindings.kernels[second] = [&] { done += 100; };
  memory.bindings.kernels[2] = [&] { third = true; };
  RunSettings settings;
  settings.skipped = {false, true, false};
  Executor(plan).Run(backend, memory.bindings, settings);
  EXPECT_EQ(done, 1);
}

TEST(Executor, UntimedRunsHaveALatencyOnly) {
  PlanBuilder builder(1, 1);
  builder.Kernel(0, {}, {}, {});
  auto plan = builder.Build();
  CpuBackend backend;
  Memory memory(*plan, backend);
  memory.bindings.kernels[0] = [] {};
  RunSettings settings;
  settings.timed = false;
  const RunRecord record = Executor(plan).Run(backend, memory.bindings, settings);
  EXPECT_TRUE(record.steps.empty());
  EXPECT_GT(record.latency.count(), 0);
}

TEST(Executor, WatchdogReportsAndGivesUp) {
  PlanBuilder builder(1, 2);
  const int buffer = builder.AddBuffer(0);
  const int first = builder.Kernel(0, {}, {buffer}, {});
  builder.Kernel(1, {buffer}, {}, {first});
  auto plan = builder.Build();
  CpuBackend backend;
  Memory memory(*plan, backend);
  std::atomic<bool> reported{false};
  memory.bindings.kernels[0] = [&] {
    while (!reported.load()) std::this_thread::yield();
  };
  memory.bindings.kernels[1] = [] {};
  RunSettings settings;
  settings.watchdog = std::chrono::milliseconds(30);
  std::string report;
  settings.report = [&](const std::string& text) {
    report = text;
    reported = true;
  };
  EXPECT_THROW(Executor(plan).Run(backend, memory.bindings, settings), StalledError);
  EXPECT_NE(report.find("operator \"op0\""), std::string::npos) << report;
  EXPECT_NE(report.find("waits for operator \"op0\""), std::string::npos) << report;
}

}  // namespace
}  // namespace tvm_sched::runtime
