#include "runtime/stages.h"

#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <exception>
#include <fstream>
#include <iterator>
#include <mutex>
#include <sstream>
#include <utility>

namespace tvm_sched::runtime {

namespace {

constexpr std::size_t kMost = 4096;

struct Noted {
  std::mutex mutex;
  std::vector<Stage> stages;
};

Noted& All() {
  static auto* noted = new Noted;  // for threads that go on while the process ends
  return *noted;
}

/// Of this process: ticks from the start of the system to its own, or -1.
long long StartTicks() {
  std::ifstream file("/proc/self/stat");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const std::size_t name_end = text.rfind(')');  // the name may hold anything
  if (name_end == std::string::npos) return -1;
  std::istringstream fields(text.substr(name_end + 1));
  constexpr int kFieldsBefore = 19;  // of those behind the name
  std::string skipped;
  for (int k = 0; k < kFieldsBefore; ++k) fields >> skipped;
  long long ticks = -1;
  return fields >> ticks ? ticks : -1;
}

}  // namespace

void NoteStage(Stage stage) {
  const std::lock_guard lock(All().mutex);
  if (All().stages.size() < kMost) All().stages.push_back(std::move(stage));
}

std::vector<Stage> NotedStages() {
  std::vector<Stage> stages;
  {
    const std::lock_guard lock(All().mutex);
    stages = All().stages;
  }
  std::stable_sort(stages.begin(), stages.end(),
                   [](const Stage& a, const Stage& b) { return a.begin < b.begin; });
  return stages;
}

Clock::time_point ProcessStart() {
  const Clock::time_point now = Clock::now();
  const long long ticks = StartTicks(), rate = sysconf(_SC_CLK_TCK);
  timespec booted{};  // since the system started, also while it slept
  if (ticks < 0 || rate <= 0 || clock_gettime(CLOCK_BOOTTIME, &booted) != 0) return now;
  constexpr long long kSecond = 1'000'000'000;
  const Nanoseconds age(booted.tv_sec * kSecond + booted.tv_nsec - ticks * (kSecond / rate));
  return now - std::max(age, Nanoseconds{0});
}

StageTimer::StageTimer(std::string name)
    : name_(std::move(name)), begin_(Clock::now()), exceptions_(std::uncaught_exceptions()) {}

StageTimer::~StageTimer() {
  if (std::uncaught_exceptions() > exceptions_) return;
  NoteStage({std::move(name_), begin_, Clock::now()});
}

}  // namespace tvm_sched::runtime
