// A fake driver under the CUDA backend, and plans to run over it.
#ifndef TVM_SCHED_TESTS_CPP_RUNTIME_CUDA_CASES_H_
#define TVM_SCHED_TESTS_CPP_RUNTIME_CUDA_CASES_H_

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <tvm/ffi/extra/c_env_api.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <random>
#include <string>
#include <thread>

#include "fake_driver/fake_cuda.h"
#include "runtime/cuda/cuda_backend.h"
#include "runtime/executor.h"
#include "runtime_plans.h"

namespace tvm_sched::runtime {

using cuda::CudaError;
using cuda::CudaMemoryError;
using cuda::Devices;
using testing::Memory;
using testing::PlanBuilder;

inline constexpr long long kGigabyte = 1LL << 30;

/// The fake driver's own functions, found in the library that the backend opens.
template <typename Function>
Function* Fake(const char* name) {
  static void* library = [] {
    setenv("TVM_SCHED_CUDA_DRIVER", TVM_SCHED_FAKE_CUDA, 1);
    return dlopen(TVM_SCHED_FAKE_CUDA, RTLD_NOW);
  }();
  return reinterpret_cast<Function*>(dlsym(library, name));
}

inline void Configure(int devices, long long memory = kGigabyte, bool peers = true) {
  Fake<decltype(fake_cuda_configure)>("fake_cuda_configure")(devices, memory, peers);
}
inline void FailAt(const char* function, int skip, int code) {
  Fake<decltype(fake_cuda_fail)>("fake_cuda_fail")(function, skip, code);
}
inline std::string Trace() {
  std::string text(1 << 16, '\0');
  Fake<decltype(fake_cuda_trace)>("fake_cuda_trace")(text.data(), static_cast<int>(text.size()));
  return text.c_str();
}
inline int Calls(const char* function) {
  return Fake<decltype(fake_cuda_calls)>("fake_cuda_calls")(function);
}

/// A kernel of the host in the order of the stream on which it is called.
inline Kernel OnStream(int gpu, std::function<void()> work) {
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
  void SetUp() override {
    setenv("TVM_SCHED_PEERS", "trust", /*overwrite=*/1);  // copies are counted
    Configure(4);
  }
};

}  // namespace tvm_sched::runtime

#endif  // TVM_SCHED_TESTS_CPP_RUNTIME_CUDA_CASES_H_
