// The CUDA backend over a driver without a GPU (fake_cuda): order by events, staged and peer
// copies, graphs, errors. Nothing here says that NVIDIA's driver behaves so.
#include "runtime_cuda_cases.h"

namespace tvm_sched::runtime {
namespace {

TEST_F(CudaTest, RunsInTheOrderOfEvents) {
  Relay relay(4, {});
  for (int k = 0; k < 20; ++k) {
    relay.executor.Run(relay.backend, relay.memory.bindings, nullptr);
    EXPECT_EQ(relay.Value(), relay.expected);
  }
  EXPECT_EQ(Calls("copy between GPUs"), 20 * relay.copies);
}

TEST_F(CudaTest, SeveralDevicesShareOneGpu) {
  Configure(1);
  Relay relay(4, {0, 0, 0, 0});
  relay.executor.Run(relay.backend, relay.memory.bindings, nullptr);
  EXPECT_EQ(relay.Value(), relay.expected);
  EXPECT_EQ(Calls("copy between GPUs"), 0);
  EXPECT_EQ(Calls("cuMemcpyAsync"), relay.copies);
}

TEST_F(CudaTest, CopiesAreStagedWhereThereAreNoPeers) {
  Configure(4, kGigabyte, false);
  Relay relay(4, {});
  for (int k = 0; k < 5; ++k) {
    relay.executor.Run(relay.backend, relay.memory.bindings, nullptr);
    EXPECT_EQ(relay.Value(), relay.expected);
  }
  EXPECT_EQ(Calls("copy between GPUs"), 0);
  EXPECT_EQ(Calls("cuMemcpyAsync"), 5 * 2 * relay.copies);
}

TEST_F(CudaTest, LargeStagedCopiesReuseTheirChunks) {
  Configure(2, kGigabyte, false);
  const Devices devices(2, {});
  const Bytes size{cuda::StagedCopy::kChunk.count * 5 + 7};
  const auto from = devices.Allocate(0, size), to = devices.Allocate(1, size);
  std::minstd_rand random(3);
  for (std::int64_t i = 0; i < size.count; ++i) from.get()[i] = static_cast<std::byte>(random());
  cuda::StagedCopy copy(devices, 0, 1);
  devices.Enter(1);
  const cuda::StreamHandle stream = cuda::MakeStream(0);
  for (int round = 0; round < 2; ++round) {
    from.get()[5] = static_cast<std::byte>(round);
    copy.Issue(reinterpret_cast<cuda::DevicePointer>(to.get()),
               reinterpret_cast<cuda::DevicePointer>(from.get()), size, stream.get());
    cuda::Driver().StreamSynchronize(stream.get());
    EXPECT_TRUE(std::equal(from.get(), from.get() + size.count, to.get()));
  }
}

TEST_F(CudaTest, ACapturedGraphDoesTheSame) {
  for (bool peers : {true, false}) {
    Configure(3, kGigabyte, peers);
    Relay relay(3, {});
    relay.executor.Run(relay.backend, relay.memory.bindings, nullptr);
    EXPECT_EQ(relay.Value(), relay.expected);
    const auto graph = relay.executor.Capture(relay.backend, relay.memory.bindings, {});
    EXPECT_EQ(relay.memory.At(relay.result), -1) << "a capture does nothing";
    for (int k = 0; k < 5; ++k) {
      relay.executor.Replay(relay.backend, graph, {});
      EXPECT_EQ(relay.Value(), relay.expected);
    }
    EXPECT_EQ(Calls("cuGraphLaunch"), 5);
    // And a run step by step still works afterwards.
    relay.executor.Run(relay.backend, relay.memory.bindings, nullptr);
    EXPECT_EQ(relay.Value(), relay.expected);
  }
}

TEST_F(CudaTest, ACaptureThatFailsNamesTheStepAndLeavesTheStreamsUsable) {
  Relay relay(2, {});
  FailAt("copy between GPUs", 1, 1);
  try {
    relay.executor.Capture(relay.backend, relay.memory.bindings, {});
    FAIL() << "no error";
  } catch (const StepError& error) {
    EXPECT_EQ(relay.plan->steps[error.step()].kind, StepKind::kCopy);
  }
  relay.executor.Run(relay.backend, relay.memory.bindings, nullptr);
  EXPECT_EQ(relay.Value(), relay.expected);
}

TEST_F(CudaTest, SkippedStepsAreNotWaitedFor) {
  // A parameter's copy, a kernel that uses it: the second run leaves the copy out.
  const auto devices = std::make_shared<Devices>(2, std::vector<int>{});
  PlanBuilder builder(2, 3);
  const int source = builder.AddBuffer(0), there = builder.AddBuffer(1), out = builder.AddBuffer(1);
  const int copy = builder.Copy(2, source, there, {});
  const int kernel = builder.Kernel(1, {there}, {out}, {copy});
  const auto plan = builder.Build();
  CudaBackend backend(plan, devices);
  Memory memory(*plan, backend);
  memory.At(source) = 5;
  memory.bindings.kernels[kernel] = OnStream(1, [&] { memory.At(out) = memory.At(there) * 2; });
  Executor executor(plan);
  executor.Run(backend, memory.bindings, nullptr);
  EXPECT_EQ(memory.At(out), 10);
  memory.At(there) = 7;
  RunSettings settings;
  settings.skipped = {true, false};
  executor.Run(backend, memory.bindings, settings);
  EXPECT_EQ(memory.At(out), 14);
  EXPECT_EQ(Calls("copy between GPUs"), 1);
  const auto graph = executor.Capture(backend, memory.bindings, settings.skipped);
  memory.At(there) = 9;
  executor.Replay(backend, graph, settings);
  EXPECT_EQ(memory.At(out), 18);
}

TEST_F(CudaTest, ACopyThatFailsNamesItsStepAndTheNextRunWorks) {
  Relay relay(3, {});
  FailAt("copy between GPUs", 2, 1);
  try {
    relay.executor.Run(relay.backend, relay.memory.bindings, nullptr);
    FAIL() << "no error";
  } catch (const StepError& error) {
    EXPECT_EQ(relay.plan->steps[error.step()].kind, StepKind::kCopy);
    EXPECT_THROW(std::rethrow_exception(error.cause()), CudaError);
  }
  relay.Value();
  relay.executor.Run(relay.backend, relay.memory.bindings, nullptr);
  EXPECT_EQ(relay.Value(), relay.expected);
}

TEST_F(CudaTest, AFailureOnTheDeviceIsToldAtTheEnd) {
  Relay relay(2, {});
  FailAt("cuStreamQuery", 0, 700);
  try {
    relay.executor.Run(relay.backend, relay.memory.bindings, nullptr);
    FAIL() << "no error";
  } catch (const CudaError& error) {
    EXPECT_NE(std::string(error.what()).find("CUDA_ERROR_ILLEGAL_ADDRESS"), std::string::npos);
    EXPECT_NE(std::string(error.what()).find("GPU 0"), std::string::npos);
  }
  // A real GPU would be lost to the process; here the next run ends all that was issued.
  relay.executor.Run(relay.backend, relay.memory.bindings, nullptr);
}

TEST_F(CudaTest, TimesOfStepsAreReadFromEvents) {
  Relay relay(2, {});
  RunSettings settings;
  settings.timed = true;
  const RunRecord record = relay.executor.Run(relay.backend, relay.memory.bindings, settings);
  ASSERT_EQ(record.steps.size(), relay.plan->steps.size());
  std::vector<Nanoseconds> free(relay.plan->queues.size());  // no step begins before its run
  for (std::size_t s = 0; s < record.steps.size(); ++s) {
    const Step& step = relay.plan->steps[s];
    if (step.kind != StepKind::kKernel) continue;  // a queue of copies has streams on several GPUs
    EXPECT_GE(record.steps[s].start, free[step.queue]);
    EXPECT_GE(record.steps[s].end, record.steps[s].start);
    free[step.queue] = record.steps[s].end;
  }
}

TEST_F(CudaTest, LongRunsAreSleptThrough) {
  const auto devices = std::make_shared<Devices>(2, std::vector<int>{});
  PlanBuilder builder(2, 2);
  const int one = builder.AddBuffer(0), other = builder.AddBuffer(1);
  builder.Kernel(0, {}, {one}, {});
  builder.Kernel(1, {}, {other}, {});
  const auto plan = builder.Build();
  CudaBackend backend(plan, devices);
  Memory memory(*plan, backend);
  for (int k = 0; k < 2; ++k) {
    memory.bindings.kernels[k] = OnStream(k, [&memory, buffer = k == 0 ? one : other] {
      std::this_thread::sleep_for(std::chrono::milliseconds(30));
      memory.At(buffer) = 7;
    });
  }
  Executor executor(plan);
  for (int run = 0; run < 3; ++run) {
    memory.At(one) = memory.At(other) = 0;
    int polls = 0;
    executor.Run(backend, memory.bindings, [&] { ++polls; });
    EXPECT_EQ(memory.At(one) + memory.At(other), 14);
    EXPECT_GE(polls, 1) << "Ctrl-C is heard meanwhile";
  }
  EXPECT_GE(Calls("cuLaunchHostFunc"), 3);
}

TEST_F(CudaTest, TheWatchdogNamesWhatRuns) {
  const auto devices = std::make_shared<Devices>(1, std::vector<int>{});
  PlanBuilder builder(1, 1);
  builder.Kernel(0, {}, {builder.AddBuffer(0)}, {});
  const auto plan = builder.Build();
  CudaBackend backend(plan, devices);
  Memory memory(*plan, backend);
  std::atomic<bool> go_on{false};
  memory.bindings.kernels[0] = OnStream(0, [&] {
    while (!go_on) std::this_thread::yield();
  });
  Executor executor(plan);
  RunSettings settings;
  settings.watchdog = Nanoseconds(60'000'000);
  std::string report;
  settings.report = [&](const std::string& text) {
    report = text;
    go_on = true;
  };
  EXPECT_THROW(executor.Run(backend, memory.bindings, settings), StalledError);
  EXPECT_NE(report.find("operator \"op0\""), std::string::npos);
}

}  // namespace
}  // namespace tvm_sched::runtime
