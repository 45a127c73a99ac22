// The threads that all kernels share, and the parallel loops of generated kernels on them.
#include "threads/pool.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <tvm/ffi/extra/module.h>
#include <tvm/ffi/function.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <stdexcept>
#include <thread>
#include <vector>

#include "ffi/runtime/parallel_loops.h"
#include "runtime/kernel_threads.h"
#include "threads/no_fork.h"
#include "threads/waiting.h"

namespace tvm_sched {
namespace {

namespace ffi = tvm::ffi;
using runtime::KernelThreads;

TEST(Pool, ALoopCallsEachIndexOnce) {
  for (int threads : {0, 1, 2, 5}) {
    std::vector<std::atomic<int>> calls(1000);
    threads::Loop(threads, 1000, [&](int k) { calls[k]++; });
    for (const auto& count : calls) EXPECT_EQ(count.load(), 1);
  }
  threads::Loop(2, 0, [](int) { FAIL(); });
}

TEST(Pool, LoopsNest) {
  std::atomic<int> calls = 0;
  threads::Loop(2, 20, [&](int) { threads::Loop(2, 20, [&](int) { calls++; }); });
  EXPECT_EQ(calls.load(), 400);
}

TEST(Pool, WhatAThreadThrowsGoesToTheCaller) {
  for (int round = 0; round < 20; ++round) {
    const auto throws = [](int k) {
      if (k == 30) throw std::runtime_error("thirty");
    };
    EXPECT_THROW(threads::Loop(2, 40, throws), std::runtime_error);
    EXPECT_THROW(threads::Enter(2, [] { throw std::runtime_error("here"); }), std::runtime_error);
  }
  std::atomic<int> calls = 0;
  threads::Loop(2, 40, [&](int) { calls++; });
  EXPECT_EQ(calls.load(), 40);
}

TEST(Pool, ManyCallersDoNotWaitForEachOther) {
  // Each has a loop that ends only when all callers are in theirs.
  constexpr int kCallers = 6;
  std::atomic<int> inside = 0;
  std::vector<std::thread> callers;
  for (int c = 0; c < kCallers; ++c) {
    callers.emplace_back([&] {
      threads::Enter(2, [&] {
        inside++;
        while (inside.load() < kCallers) std::this_thread::yield();
        std::atomic<int> calls = 0;
        threads::Loop(2, 100, [&](int) { calls++; });
        EXPECT_EQ(calls.load(), 100);
      });
    });
  }
  for (std::thread& caller : callers) caller.join();
}

TEST(Pool, WaitingThreadsPause) {
  EXPECT_TRUE(threads::PauseBeforeYielding()) << "libtbb has no entry for sched_yield";
  EXPECT_TRUE(threads::PauseBeforeYielding()) << "the entry is not found again";
}

TEST(Pool, AForkedChildGoesOnWithoutTheWorkers) {
  // Many times, since a fork must meet a worker that holds a lock of TBB's.
  for (int round = 0; round < 500; ++round) {
    threads::Loop(2, 100, [](int) {});
    const pid_t child = fork();
    if (child == 0) {
      alarm(10);
      std::atomic<int> calls = 0;
      threads::Loop(2, 100, [&](int) { calls++; });
      threads::Enter(2, [&] { threads::Loop(2, 100, [&](int) { calls++; }); });
      _exit(calls.load() == 200 ? 0 : 1);
    }
    int status = -1;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_EQ(status, 0) << "round " << round;
  }
}

TEST(NoFork, AForkWaitsForTheSectionsOfOthers) {
  std::atomic<bool> inside = false, end = false;
  const auto work = [&] {
    while (!end) {
      const threads::NoFork outer;
      inside = true;
      {
        const threads::NoFork nested;  // does not wait for the fork that waits for it
        std::this_thread::yield();
      }
      inside = false;
    }
  };
  std::thread other(work);
  int failed = 0;
  for (int round = 0; round < 300; ++round) {
    const pid_t child = fork();
    if (child == 0) {
      alarm(10);
      {
        const threads::NoFork own;
      }
      const pid_t grandchild = fork();
      if (grandchild == 0) _exit(inside);
      int status = -1;
      _exit(waitpid(grandchild, &status, 0) == grandchild && status == 0 ? 0 : 1);
    }
    int status = -1;
    failed += waitpid(child, &status, 0) != child || status != 0;
  }
  end = true;
  other.join();
  EXPECT_EQ(failed, 0);
}

// ---- loops of generated kernels ----

struct GroupEnvironment {
  void* sync_handle;
  std::int32_t num_task;
};
using Lambda = int (*)(int, GroupEnvironment*, void*);
using Launch = int (*)(Lambda, void*, int);

/// What the loader would put into a kernel's library.
Launch LaunchOfKernels() {
  runtime::TakeParallelLoops();
  void* found = nullptr;
  ffi::Module::VisitContextSymbols(
      ffi::TypedFunction<void(ffi::String, void*)>([&](const ffi::String& name, void* symbol) {
        if (name == "__TVMBackendParallelLaunch") found = symbol;
      }));
  return reinterpret_cast<Launch>(found);
}

struct Seen {
  std::atomic<int> calls{0}, sum{0}, tasks{0}, nested{0};
};

int Note(int task, GroupEnvironment* environment, void* data) {
  auto* seen = static_cast<Seen*>(data);
  seen->calls++;
  seen->sum += task;
  seen->tasks = environment->num_task;
  seen->nested += KernelThreads::Current() == 1 ? 0 : 1;
  return 0;
}

TEST(ParallelLoops, UseTheKernelsThreads) {
  const Launch launch = LaunchOfKernels();
  ASSERT_NE(launch, nullptr);
  const KernelThreads threads(2);
  Seen seen;
  EXPECT_EQ(launch(Note, &seen, 0), 0);
  EXPECT_GE(seen.tasks.load(), 2);
  EXPECT_EQ(seen.calls.load(), seen.tasks.load());
  EXPECT_EQ(seen.sum.load(), seen.tasks * (seen.tasks - 1) / 2);
  EXPECT_EQ(seen.nested.load(), 0) << "a loop in a loop would have threads of its own";
  EXPECT_EQ(KernelThreads::Current(), 2);
  Seen named;
  EXPECT_EQ(launch(Note, &named, 7), 0);
  EXPECT_EQ(named.calls.load(), 7);
  EXPECT_EQ(named.tasks.load(), 7);
}

TEST(ParallelLoops, OneThreadDoesAllItself) {
  const Launch launch = LaunchOfKernels();
  const KernelThreads threads(1);
  Seen seen;
  EXPECT_EQ(launch(Note, &seen, 0), 0);
  EXPECT_EQ(seen.calls.load(), 1);
}

int FailInTheLast(int task, GroupEnvironment* environment, void*) {
  if (task + 1 < environment->num_task) return 0;
  TVMFFIErrorSetRaisedFromCStr("ValueError", "the last task failed");
  return -1;
}

TEST(ParallelLoops, TheErrorOfATaskReachesTheCaller) {
  const Launch launch = LaunchOfKernels();
  for (int threads : {1, 2}) {
    const KernelThreads scope(threads);
    ASSERT_EQ(launch(FailInTheLast, nullptr, 16), -1);
    TVMFFIObjectHandle raised = nullptr;
    TVMFFIErrorMoveFromRaised(&raised);
    ASSERT_NE(raised, nullptr);
    const auto error = ffi::detail::ObjectUnsafe::ObjectRefFromObjectPtr<ffi::Error>(
        ffi::detail::ObjectUnsafe::ObjectPtrFromOwned<ffi::ErrorObj>(
            static_cast<TVMFFIObject*>(raised)));
    EXPECT_EQ(error.message(), "the last task failed");
  }
}

TEST(ParallelLoops, AreTakenOnce) {
  LaunchOfKernels();
  const auto count = [] {
    int found = 0;
    ffi::Module::VisitContextSymbols(ffi::TypedFunction<void(ffi::String, void*)>(
        [&](const ffi::String& name, void*) { found += name == "__TVMBackendParallelLaunch"; }));
    return found;
  };
  const int before = count();
  runtime::TakeParallelLoops();
  EXPECT_EQ(count(), before);
}

}  // namespace
}  // namespace tvm_sched
