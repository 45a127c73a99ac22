// The CUDA backend over the fake driver: batches that overlap, memory, random plans.
#include "runtime_cuda_cases.h"

namespace tvm_sched::runtime {
namespace {

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
