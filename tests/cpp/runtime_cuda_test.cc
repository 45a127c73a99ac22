// The CUDA backend over a driver without a GPU (fake_cuda): order by events, staged and peer
// copies, graphs, errors. Nothing here says that NVIDIA's driver behaves so.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <tvm/ffi/extra/c_env_api.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <random>
#include <string>
#include <thread>

#include "fake_cuda/fake_cuda.h"
#include "runtime/cuda/cuda_backend.h"
#include "runtime/executor.h"
#include "runtime_plans.h"

namespace tvm_sched::runtime {
namespace {

using cuda::CudaError;
using cuda::CudaMemoryError;
using cuda::Devices;
using testing::Memory;
using testing::PlanBuilder;

constexpr long long kGigabyte = 1LL << 30;

/// The fake driver's own functions, found in the library that the backend opens.
template <typename Function>
Function* Fake(const char* name) {
  static void* library = [] {
    setenv("TVM_SCHED_CUDA_DRIVER", TVM_SCHED_FAKE_CUDA, 1);
    return dlopen(TVM_SCHED_FAKE_CUDA, RTLD_NOW);
  }();
  return reinterpret_cast<Function*>(dlsym(library, name));
}

void Configure(int devices, long long memory = kGigabyte, bool peers = true) {
  Fake<decltype(fake_cuda_configure)>("fake_cuda_configure")(devices, memory, peers);
}
void FailAt(const char* function, int skip, int code) {
  Fake<decltype(fake_cuda_fail)>("fake_cuda_fail")(function, skip, code);
}
std::string Trace() {
  std::string text(1 << 16, '\0');
  Fake<decltype(fake_cuda_trace)>("fake_cuda_trace")(text.data(), static_cast<int>(text.size()));
  return text.c_str();
}
int Calls(const char* function) {
  return Fake<decltype(fake_cuda_calls)>("fake_cuda_calls")(function);
}

/// A kernel of the host in the order of the stream on which it is called.
Kernel OnStream(int gpu, std::function<void()> work) {
  auto kept = std::make_shared<std::function<void()>>(std::move(work));
  return [gpu, kept] {
    void* stream = TVMFFIEnvGetStream(kDLCUDA, gpu);
    auto* enqueue = Fake<decltype(fake_cuda_enqueue)>("fake_cuda_enqueue");
    const int result = enqueue(
        stream, [](void* data) { (*static_cast<std::function<void()>*>(data))(); }, kept.get());
    if (result != 0) throw std::runtime_error("enqueue " + std::to_string(result));
  };
}

/// `count` devices that count up in turns: device d adds d + 1 to what the one before it sent.
struct Relay {
  Relay(int count, std::vector<int> gpus, int rounds = 3)
      : devices(std::make_shared<Devices>(count, gpus)),
        plan(MakePlan(count, rounds)),
        backend(plan, devices),
        memory(*plan, backend),
        executor(plan) {
    for (std::size_t s = 0; s < plan->steps.size(); ++s) {
      const Step& step = plan->steps[s];
      if (step.kind != StepKind::kKernel) continue;
      const int device = plan->buffers[step.outputs[0]].source.index;
      const bool first = step.inputs.empty();
      const int in = first ? -1 : step.inputs[0], out = step.outputs[0];
      memory.bindings.kernels[s] = OnStream(devices->Gpu(device), [this, in, out, device] {
        memory.At(out) = (in < 0 ? 0 : memory.At(in)) + device + 1;
      });
    }
  }

  std::shared_ptr<const Plan> MakePlan(int count, int rounds) {
    PlanBuilder builder(count, count + 1);
    int last = -1, step = -1;
    for (int k = 0; k < count * rounds; ++k) {
      const int device = k % count;
      std::vector<int> inputs, waits;
      if (last >= 0) {
        const int arrived = builder.AddBuffer(device);
        waits = {builder.Copy(count, last, arrived, {step})};
        inputs = {arrived};
        ++copies;
      }
      last = builder.AddBuffer(device);
      step = builder.Kernel(device, inputs, {last}, waits);
    }
    result = last;
    expected = rounds * count * (count + 1) / 2;
    return builder.Build();
  }

  std::int64_t Value() {
    const std::int64_t value = memory.At(result);
    memory.At(result) = -1;
    return value;
  }

  int result = -1, expected = 0, copies = 0;
  std::shared_ptr<const Devices> devices;
  std::shared_ptr<const Plan> plan;
  CudaBackend backend;
  Memory memory;
  Executor executor;
};

class CudaTest : public ::testing::Test {
 protected:
  void SetUp() override { Configure(4); }
};

TEST_F(CudaTest, RunsInTheOrderOfEvents) {
  Relay relay(4, {});
  for (int k = 0; k < 20; ++k) {
    relay.executor.Run(relay.backend, relay.memory.bindings, nullptr);
    EXPECT_EQ(relay.Value(), relay.expected);
  }
  EXPECT_EQ(Calls("cuMemcpyPeerAsync"), 20 * relay.copies);
}

TEST_F(CudaTest, SeveralDevicesShareOneGpu) {
  Configure(1);
  Relay relay(4, {0, 0, 0, 0});
  relay.executor.Run(relay.backend, relay.memory.bindings, nullptr);
  EXPECT_EQ(relay.Value(), relay.expected);
  EXPECT_EQ(Calls("cuMemcpyPeerAsync"), 0);
  EXPECT_EQ(Calls("cuMemcpyAsync"), relay.copies);
}

TEST_F(CudaTest, CopiesAreStagedWhereThereAreNoPeers) {
  Configure(4, kGigabyte, false);
  Relay relay(4, {});
  for (int k = 0; k < 5; ++k) {
    relay.executor.Run(relay.backend, relay.memory.bindings, nullptr);
    EXPECT_EQ(relay.Value(), relay.expected);
  }
  EXPECT_EQ(Calls("cuMemcpyPeerAsync"), 0);
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
  FailAt("cuMemcpyPeerAsync", 1, 1);
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
  EXPECT_EQ(Calls("cuMemcpyPeerAsync"), 1);
  const auto graph = executor.Capture(backend, memory.bindings, settings.skipped);
  memory.At(there) = 9;
  executor.Replay(backend, graph, settings);
  EXPECT_EQ(memory.At(out), 18);
}

TEST_F(CudaTest, ACopyThatFailsNamesItsStepAndTheNextRunWorks) {
  Relay relay(3, {});
  FailAt("cuMemcpyPeerAsync", 2, 1);
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
  for (const Interval& interval : record.steps) {
    EXPECT_GE(interval.start, Nanoseconds(1'000'000));  // an event lies 1 ms after the run's start
    EXPECT_EQ(interval.start, interval.end);
  }
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

/// A run of its own on GPU 0: x comes in, a kernel makes y of it, y goes out.
struct Batch {
  Batch(const std::shared_ptr<const Devices>& devices, const std::shared_ptr<cuda::Turns>& turns)
      : pinned(devices->AllocateHost({16})),
        plan(MakePlan()),
        backend(plan, devices),
        memory(*plan, backend),
        executor(plan) {
    backend.TakeTurns(turns);
    memory.bindings.buffers[0] = pinned.get();
    memory.bindings.buffers[3] = pinned.get() + 8;
    memory.At(0) = 0;
  }

  static std::shared_ptr<const Plan> MakePlan() {
    PlanBuilder builder(1, 3);
    for (int b = 0; b < 4; ++b) builder.AddBuffer(0);
    const int in = builder.Copy(1, 0, 1, {});
    const int kernel = builder.Kernel(0, {1}, {2}, {in});
    builder.Copy(2, 2, 3, {kernel});
    Plan plan = *builder.Build();
    plan.buffers[0].source = {SourceKind::kArgument, 0, {0}};
    plan.buffers[3].source = {SourceKind::kOutput, 0, {0}};
    return std::make_shared<const Plan>(plan);
  }

  void Run(std::function<void()> kernel) {
    memory.bindings.kernels[1] = OnStream(0, std::move(kernel));
    executor.Run(backend, memory.bindings, nullptr);
  }

  std::shared_ptr<std::byte> pinned;
  std::shared_ptr<const Plan> plan;
  CudaBackend backend;
  Memory memory;
  Executor executor;
};

TEST_F(CudaTest, TheNextBatchArrivesWhileTheOneBeforeIsComputedAndIsComputedAfterIt) {
  const auto devices = std::make_shared<const Devices>(1, std::vector<int>{0});
  const auto turns = std::make_shared<cuda::Turns>();
  Batch first(devices, turns), second(devices, turns);
  second.memory.At(0) = 7;
  std::atomic<bool> arrived{false}, first_done{false}, in_order{false};
  std::thread other;
  first.Run([&] {
    other = std::thread([&] {
      second.Run([&] {
        in_order = first_done.load();
        second.memory.At(2) = second.memory.At(1) + 1;
      });
    });
    for (int wait = 0; wait < 5000 && !arrived; ++wait) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      arrived = Trace() == "HhKHh";
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    first_done = true;
  });
  other.join();
  EXPECT_TRUE(arrived);
  EXPECT_TRUE(in_order);
  EXPECT_EQ(second.memory.At(3), 8);
}

TEST_F(CudaTest, ARunThatFailsPassesItsTurn) {
  const auto devices = std::make_shared<const Devices>(1, std::vector<int>{0});
  const auto turns = std::make_shared<cuda::Turns>();
  Batch first(devices, turns), second(devices, turns);
  for (const char* function : {"cuMemcpyAsync", "cuStreamWaitEvent", "cuEventRecord"}) {
    second.Run([] {});
    FailAt(function, 0, 1);
    EXPECT_ANY_THROW(first.Run([] {})) << function;
    second.memory.At(3) = 0;
    second.Run([&] { second.memory.At(2) = 5; });
    EXPECT_EQ(second.memory.At(3), 5);
  }
}

TEST_F(CudaTest, MemoryThatRunsOutIsToldWithWhatIsFree) {
  Configure(1, 1 << 20);
  const Devices devices(2, {0, 0});
  const auto first = devices.Allocate(0, {1 << 19});
  try {
    devices.Allocate(1, {(1 << 19) + 1});
    FAIL() << "no error";
  } catch (const CudaMemoryError& error) {
    EXPECT_STREQ(error.what(),
                 "GPU 0 has 524288 of 1048576 bytes free, and 524289 are needed; 2 of the plan's "
                 "devices share it");
  }
}

TEST_F(CudaTest, MemoryIsGivenBack) {
  const auto allocated = Fake<decltype(fake_cuda_allocated)>("fake_cuda_allocated");
  const long long before = allocated(0), pinned = allocated(-1);
  {
    Configure(2, kGigabyte, false);
    Relay relay(2, {});
    relay.executor.Run(relay.backend, relay.memory.bindings, nullptr);
    EXPECT_GT(allocated(0), before);
    EXPECT_GT(allocated(-1), pinned);  // for staged copies
  }
  EXPECT_EQ(allocated(0), before);
  EXPECT_EQ(allocated(-1), pinned);
}

TEST_F(CudaTest, TooFewGpusSayHowToShare) {
  Configure(2);
  try {
    Devices devices(4, {});
    FAIL() << "no error";
  } catch (const CudaError& error) {
    EXPECT_NE(std::string(error.what()).find("for 4 GPUs, and this machine has 2"),
              std::string::npos);
    EXPECT_NE(std::string(error.what()).find("configure(devices=[0, 0, ...])"), std::string::npos);
  }
  EXPECT_THROW(Devices(2, {0, 2}), std::invalid_argument);
  EXPECT_THROW(Devices(2, {0}), std::invalid_argument);
}

TEST_F(CudaTest, AKernelOnTwoDevicesIsRefused) {
  PlanBuilder builder(2, 3);
  const int a = builder.AddBuffer(0), b = builder.AddBuffer(1);
  builder.Kernel(2, {a}, {b}, {});
  EXPECT_THROW(cuda::MakeStepRoutes(*builder.Build(), {0, 1}), std::invalid_argument);
}

TEST_F(CudaTest, RandomPlansGiveTheirValues) {
  // Sums over random predecessors, on random devices, by copies where they lie elsewhere.
  for (int seed = 0; seed < 10; ++seed) {
    std::minstd_rand random(seed + 1);
    const int count = 3;
    Configure(count, kGigabyte, seed % 2 == 0);
    const auto devices = std::make_shared<Devices>(
        count, seed % 3 == 0 ? std::vector<int>{0, 1, 0} : std::vector<int>{});
    PlanBuilder builder(count, count + 2);
    struct Made {
      int buffer, step, device;
      std::int64_t value;
    };
    std::vector<Made> made;
    std::vector<std::vector<int>> inputs_of;
    for (int k = 0; k < 25; ++k) {
      const int device = static_cast<int>(random() % count);
      std::vector<int> inputs, waits;
      std::int64_t value = k + 1;
      for (std::size_t p = 0; p < made.size(); ++p) {
        if (random() % 4 != 0) continue;
        value += made[p].value;
        inputs.push_back(made[p].buffer);
        waits.push_back(made[p].step);
        if (made[p].device == device) continue;
        inputs.back() = builder.AddBuffer(device);
        const int queue = count + static_cast<int>(random() % 2);
        waits.back() = builder.Copy(queue, made[p].buffer, inputs.back(), {made[p].step});
      }
      const int out = builder.AddBuffer(device);
      made.push_back({out, builder.Kernel(device, inputs, {out}, waits), device, value});
    }
    const auto plan = builder.Build();
    CudaBackend backend(plan, devices);
    Memory memory(*plan, backend);
    for (std::size_t k = 0; k < made.size(); ++k) {
      const Step& step = plan->steps[made[k].step];
      memory.bindings.kernels[made[k].step] =
          OnStream(devices->Gpu(made[k].device), [&memory, &step, k] {
            std::int64_t sum = static_cast<std::int64_t>(k) + 1;
            for (int input : step.inputs) sum += memory.At(input);
            memory.At(step.outputs[0]) = sum;
          });
    }
    Executor executor(plan);
    executor.Run(backend, memory.bindings, nullptr);
    for (const Made& each : made) EXPECT_EQ(memory.At(each.buffer), each.value) << seed;
    for (const Made& each : made) memory.At(each.buffer) = -1;
    executor.Replay(backend, executor.Capture(backend, memory.bindings, {}), {});
    for (const Made& each : made) EXPECT_EQ(memory.At(each.buffer), each.value) << seed;
  }
}

}  // namespace
}  // namespace tvm_sched::runtime
