// The executor with lambdas for kernels: values, order, errors, many runs.
#include <gtest/gtest.h>

#include <atomic>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>

#include "ffi/runtime/errors.h"
#include "runtime/cpu/cpu_backend.h"
#include "runtime/executor.h"
#include "runtime_plans.h"

namespace tvm_sched::runtime {
namespace {

using testing::Memory;
using testing::PlanBuilder;

/// Fork and join over four queues: 1 -> copies to four devices -> each adds its number -> copies
/// back -> sum.
struct ForkJoin {
  static constexpr int kQueues = 4;

  ForkJoin() : plan(MakePlan()), memory(*plan, backend), executor(plan) {
    auto& kernels = memory.bindings.kernels;
    kernels[0] = [this] { memory.At(0) = 1; };
    for (int q = 0; q < kQueues; ++q) {
      kernels[works[q]] = [this, q] { memory.At(outs[q]) = memory.At(ins[q]) + 10 * q; };
    }
    kernels[last] = [this] {
      memory.At(result) = 0;
      for (int q = 0; q < kQueues; ++q) memory.At(result) += memory.At(backs[q]);
    };
  }

  std::shared_ptr<const Plan> MakePlan() {
    PlanBuilder builder(kQueues, kQueues + 1);
    builder.AddBuffer(0);
    const int first = builder.Kernel(0, {}, {0}, {});
    std::vector<int> joined;
    for (int q = 0; q < kQueues; ++q) {
      ins.push_back(builder.AddBuffer(q));
      outs.push_back(builder.AddBuffer(q));
      backs.push_back(builder.AddBuffer(0));
      const int there = builder.Copy(kQueues, 0, ins[q], {first});
      works.push_back(builder.Kernel(q, {ins[q]}, {outs[q]}, {there}));
    }
    for (int q = 0; q < kQueues; ++q) {
      joined.push_back(builder.Copy(kQueues, outs[q], backs[q], {works[q]}));
    }
    result = builder.AddBuffer(0);
    last = builder.Kernel(0, backs, {result}, joined);
    return builder.Build();
  }

  std::int64_t RunOnce() {
    memory.At(result) = -1;
    executor.Run(backend, memory.bindings, nullptr);
    return memory.At(result);
  }

  std::vector<int> ins, outs, backs, works;
  int last = 0, result = 0;
  CpuBackend backend;
  std::shared_ptr<const Plan> plan;
  Memory memory;
  Executor executor;
};

TEST(Executor, ChainKeepsItsOrder) {
  PlanBuilder builder(1, 1);
  const int buffer = builder.AddBuffer(0);
  for (int i = 0; i < 5; ++i) builder.Kernel(0, {buffer}, {buffer}, {});
  auto plan = builder.Build();
  CpuBackend backend;
  Memory memory(*plan, backend);
  memory.At(buffer) = 0;
  for (int i = 0; i < 5; ++i) {
    memory.bindings.kernels[i] = [&memory, buffer, i] {
      memory.At(buffer) = memory.At(buffer) * 10 + i;
    };
  }
  const RunRecord record = Executor(plan).Run(backend, memory.bindings, nullptr);
  EXPECT_EQ(memory.At(buffer), 1234);
  ASSERT_EQ(record.steps.size(), 5U);
  for (int i = 1; i < 5; ++i) EXPECT_GE(record.steps[i].start, record.steps[i - 1].end);
  EXPECT_EQ(record.latency, record.steps.back().end);
}

TEST(Executor, ForkJoinOverFourQueuesManyTimes) {
  ForkJoin test;
  for (int run = 0; run < 1000; ++run) ASSERT_EQ(test.RunOnce(), 4 + 60) << "run " << run;
}

TEST(Executor, NoStepBeginsBeforeThoseItWaitsFor) {
  ForkJoin test;
  const RunRecord record = test.executor.Run(test.backend, test.memory.bindings, nullptr);
  for (std::size_t i = 0; i < record.steps.size(); ++i) {
    for (int wait : test.plan->steps[i].waits) {
      EXPECT_GE(record.steps[i].start, record.steps[wait].end);
    }
  }
}

TEST(Executor, ErrorStopsTheRunAndTheNextOneWorks) {
  ForkJoin test;
  const int bad = test.works[2];
  const Kernel good = test.memory.bindings.kernels[bad];
  for (int round = 0; round < 20; ++round) {
    test.memory.bindings.kernels[bad] = [] { throw std::runtime_error("no luck"); };
    try {
      test.executor.Run(test.backend, test.memory.bindings, nullptr);
      FAIL() << "the error was lost";
    } catch (const StepError& error) {
      EXPECT_EQ(error.step(), bad);
      EXPECT_THROW(std::rethrow_exception(error.cause()), std::runtime_error);
    }
    test.memory.bindings.kernels[bad] = good;
    EXPECT_EQ(test.RunOnce(), 64);
  }
}

/// A backend whose copies fail as long as it is told to: a driver that reports an error.
class FailingCopies final : public Backend {
 public:
  std::shared_ptr<std::byte> Allocate(int device, Bytes size) override {
    return cpu_.Allocate(device, size);
  }
  Interval Launch(const Kernel& kernel, const Timing& timing, const RunContext& run) override {
    return cpu_.Launch(kernel, timing, run);
  }
  Interval Copy(void* to, const void* from, Bytes size, const Timing& timing,
                const RunContext& run) override {
    if (failing) throw std::runtime_error("unspecified launch failure");
    return cpu_.Copy(to, from, size, timing, run);
  }
  Interval Occupy(const Timing& timing, const RunContext& run) override {
    return cpu_.Occupy(timing, run);
  }

  bool failing = true;

 private:
  CpuBackend cpu_;
};

TEST(Executor, ACopyThatFailsIsNamedAndTheNextRunWorks) {
  ForkJoin test;
  FailingCopies backend;
  for (int round = 0; round < 20; ++round) {
    backend.failing = true;
    try {
      test.executor.Run(backend, test.memory.bindings, nullptr);
      FAIL() << "the error was lost";
    } catch (const StepError& error) {
      EXPECT_EQ(test.plan->steps[error.step()].kind, StepKind::kCopy);
      try {
        RethrowStepError(*test.plan, error);
      } catch (const tvm::ffi::Error& told) {
        const std::string message = told.message();
        EXPECT_NE(message.find("transfer of \"op1\" (step 1, queue \"queue4\", device \"dev0\")"),
                  std::string::npos)
            << message;
        EXPECT_NE(message.find("failed: unspecified launch failure"), std::string::npos) << message;
      }
    }
    backend.failing = false;
    test.executor.Run(backend, test.memory.bindings, nullptr);
    EXPECT_EQ(test.memory.At(test.result), 64);
  }
}

/// A backend whose kernels last until the run is given up: on threads that do not poll all that
/// time, on the caller's, which polls between its kernels, a millisecond each.
class UntilStopped final : public Backend {
 public:
  std::shared_ptr<std::byte> Allocate(int device, Bytes size) override {
    return cpu_.Allocate(device, size);
  }
  int Workers() const override { return workers; }
  Interval Launch(const Kernel& kernel, const Timing& timing, const RunContext& run) override {
    const auto end = Clock::now() + std::chrono::milliseconds(1);
    const bool polls = std::this_thread::get_id() == caller_;
    while (waiting && !run.stopped.load() && !(polls && Clock::now() >= end))
      std::this_thread::yield();
    return cpu_.Launch(kernel, timing, run);
  }
  Interval Copy(void* to, const void* from, Bytes size, const Timing& timing,
                const RunContext& run) override {
    return cpu_.Copy(to, from, size, timing, run);
  }
  Interval Occupy(const Timing& timing, const RunContext& run) override {
    return cpu_.Occupy(timing, run);
  }

  bool waiting = true;
  int workers = 2;  // the caller is one of them

 private:
  CpuBackend cpu_;
  const std::thread::id caller_ = std::this_thread::get_id();
};

TEST(Executor, InterruptStopsTheRun) {
  // The caller polls between the kernels that it runs itself, and while it waits for others.
  constexpr int kKernels = 1000;  // a second of the caller's, which polls every 20 ms
  PlanBuilder builder(1, 2);
  const int buffer = builder.AddBuffer(0);
  int last = -1;
  for (int k = 0; k < kKernels; ++k) last = builder.Kernel(0, {}, {buffer}, {});
  builder.Kernel(1, {buffer}, {}, {last});
  auto plan = builder.Build();
  UntilStopped backend;
  Memory memory(*plan, backend);
  bool second_ran = false;
  for (int k = 0; k < kKernels; ++k) memory.bindings.kernels[k] = [] {};
  memory.bindings.kernels[kKernels] = [&] { second_ran = true; };
  Executor executor(plan);
  for (int workers : {0, 1, 2}) {  // 0: the caller only waits
    backend.workers = workers;
    EXPECT_THROW(
        executor.Run(backend, memory.bindings, [] { throw std::logic_error("interrupt"); }),
        std::logic_error);
    EXPECT_FALSE(second_ran) << workers;
  }
  backend.waiting = false;
  executor.Run(backend, memory.bindings, nullptr);
  EXPECT_TRUE(second_ran);
}

TEST(Executor, AnInterruptIsNotPolledOver) {
  // The caller's kernel ends once the other one runs; that one ends some polls after the first.
  PlanBuilder builder(2, 2);
  builder.Kernel(0, {}, {}, {});
  builder.Kernel(1, {}, {}, {});
  auto plan = builder.Build();
  const auto caller = std::this_thread::get_id();
  std::atomic<int> started{0}, polls{0};
  const auto wait = [](std::chrono::milliseconds longest, const auto& until) {
    const auto end = Clock::now() + longest;
    while (!until() && Clock::now() < end) std::this_thread::yield();
  };
  const auto kernel = [&] {
    ++started;
    wait(std::chrono::seconds(20), [&] { return started.load() == 2; });
    if (std::this_thread::get_id() == caller) return;
    wait(std::chrono::seconds(20), [&] { return polls.load() >= 1; });
    wait(std::chrono::milliseconds(100), [&] { return polls.load() > 1; });
  };
  CpuBackend backend;
  Memory memory(*plan, backend);
  memory.bindings.kernels = {kernel, kernel};
  const auto poll = [&] { throw std::logic_error("interrupt " + std::to_string(++polls)); };
  try {
    Executor(plan).Run(backend, memory.bindings, poll);
    FAIL() << "the interrupt is thrown again";
  } catch (const std::logic_error& error) {
    EXPECT_STREQ(error.what(), "interrupt 1");
  }
}

TEST(Executor, CallersMayComeFromSeveralThreads) {
  ForkJoin test;
  std::mutex mutex;
  std::vector<std::thread> callers;
  std::atomic<int> wrong{0};
  for (int caller = 0; caller < 4; ++caller) {
    callers.emplace_back([&] {
      for (int run = 0; run < 50; ++run) {
        std::lock_guard lock(mutex);
        if (test.RunOnce() != 64) ++wrong;
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(wrong, 0);
}

TEST(Executor, EmptyPlanAndEmptyQueues) {
  CpuBackend backend;
  EXPECT_EQ(Executor(PlanBuilder(1, 0).Build()).Run(backend, {}, nullptr).latency.count(), 0);
  EXPECT_EQ(Executor(PlanBuilder(1, 3).Build()).Run(backend, {}, nullptr).latency.count(), 0);
}

TEST(Executor, RandomGraphsEqualSequentialExecution) {
  for (unsigned seed = 0; seed < 50; ++seed) {
    std::mt19937 random(seed);
    const int queues = 1 + static_cast<int>(random() % 6);
    PlanBuilder builder(1, queues);
    std::vector<std::uint64_t> expected;
    std::vector<std::vector<int>> inputs;
    for (int i = 0; i < 60; ++i) {
      builder.AddBuffer(0);
      std::vector<int> before;
      for (int k = 0; k < 3 && i > 0; ++k) before.push_back(static_cast<int>(random() % i));
      auto value = static_cast<std::uint64_t>(i);
      for (int b : before) value = value * 31 + expected[b];
      expected.push_back(value);
      inputs.push_back(before);
      builder.Kernel(static_cast<int>(random() % queues), before, {i}, before);
    }
    auto plan = builder.Build();
    CpuBackend backend;
    Memory memory(*plan, backend);
    for (int i = 0; i < 60; ++i) {
      memory.bindings.kernels[i] = [&memory, &inputs, i] {
        auto value = static_cast<std::uint64_t>(i);
        for (int b : inputs[i]) value = value * 31 + static_cast<std::uint64_t>(memory.At(b));
        memory.At(i) = static_cast<std::int64_t>(value);
      };
    }
    Executor(plan).Run(backend, memory.bindings, nullptr);
    for (int i = 0; i < 60; ++i) {
      ASSERT_EQ(static_cast<std::uint64_t>(memory.At(i)), expected[i]) << "seed " << seed;
    }
  }
}

TEST(CpuBackend, ArenasAreAligned) {
  CpuBackend backend;
  for (std::int64_t size : {0, 1, 100, 100000}) {
    EXPECT_TRUE(IsAligned(backend.Allocate(0, {size}).get()));
  }
}

}  // namespace
}  // namespace tvm_sched::runtime
