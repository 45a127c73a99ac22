#include "runtime/emulated/emulated_backend.h"

#include <sys/prctl.h>
#include <time.h>

#include <algorithm>
#include <cmath>
#include <vector>

namespace tvm_sched::runtime {

namespace {

// How late a thread may notice that its step could begin and still be taken as in time. A device's
// queue begins the next kernel by itself; here a thread plays the device, and the scheduler of
// this machine wakes it up to several time slices late when cores are short. Steps that wait for
// the wrong thing are seen all the same, since a step is ready when those it waits for ended. What
// is forgiven here is not forgiven in RunRecord::wall, which the machine's clock measures.
constexpr Nanoseconds kTolerance{20'000'000};

// A wait is cut into slices so that a run that was given up ends soon.
constexpr Nanoseconds kSlice{20'000'000};

/// Sleep until `end` (time of the run), or until the run is stopped.
void SleepUntil(Nanoseconds end, const RunContext& run) {
  for (Nanoseconds now = run.Now(); now < end && !run.stopped.load(); now = run.Now()) {
    const Nanoseconds wake = run.began.time_since_epoch() + std::min(end, now + kSlice);
    timespec deadline{};
    deadline.tv_sec = static_cast<time_t>(wake.count() / 1'000'000'000);
    deadline.tv_nsec = static_cast<long>(wake.count() % 1'000'000'000);
    clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &deadline, nullptr);
  }
}

/// One step's wait. It starts when its predecessors ended by their own record, not when this
/// thread woke up, and it ends at start + duration by record: so wake-up delays do not add up
/// along a chain, as they do not on a device whose queue waits for events itself. A thread that
/// notices later than kTolerance starts now, and that delay is seen in the measured latency.
Interval Wait(const Timing& timing, double scale, const RunContext& run) {
  const Nanoseconds now = run.Now();
  const Nanoseconds start = now - timing.ready <= kTolerance ? timing.ready : now;
  const auto length = std::llround(static_cast<double>(timing.duration.count()) * scale);
  const Nanoseconds end = start + Nanoseconds(length);
  SleepUntil(end, run);
  return {start, end};
}

}  // namespace

void EmulatedBackend::EnterQueue() {
  // By default Linux may delay a sleeper by 50 us to join it with others.
  prctl(PR_SET_TIMERSLACK, 1UL, 0UL, 0UL, 0UL);
}

Interval EmulatedBackend::Launch(const Kernel&, const Timing& timing, const RunContext& run) {
  return Wait(timing, scale_, run);
}

Interval EmulatedBackend::Copy(void*, const void*, Bytes, const Timing& timing,
                               const RunContext& run) {
  return Wait(timing, scale_, run);
}

Interval EmulatedBackend::Occupy(const Timing& timing, const RunContext& run) {
  return Wait(timing, scale_, run);
}

double ChooseScale(const Plan& plan) {
  constexpr double kShortestRun = 0.5e9, kLongestRun = 3e9, kTypicalStep = 0.25e6;  // ns
  const auto length = static_cast<double>(plan.CriticalLength().count());
  std::vector<Nanoseconds> durations;
  for (const Step& step : plan.steps) {
    if (step.duration.count() > 0) durations.push_back(step.duration);
  }
  if (durations.empty()) return 1.0;
  auto middle = durations.begin() + static_cast<std::ptrdiff_t>(durations.size() / 2);
  std::nth_element(durations.begin(), middle, durations.end());
  const double for_steps = kTypicalStep / static_cast<double>(middle->count());
  return std::max({1.0, kShortestRun / length, std::min(for_steps, kLongestRun / length)});
}

}  // namespace tvm_sched::runtime
