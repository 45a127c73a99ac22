#include "kernels/onednn/fastest.h"

#include <time.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <map>
#include <utility>
#include <vector>

#include "kernels/onednn/kernel.h"
#include "threads/pool.h"

namespace tvm_sched::onednn {

namespace {

using Time = std::chrono::nanoseconds;

/// What a kernel of this many threads takes: of one thread its processor time, since other work on
/// the machine interrupts it, and of several the time by the clock.
Time Now(int threads) {
  if (threads > 1) return std::chrono::steady_clock::now().time_since_epoch();
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return std::chrono::seconds(time.tv_sec) + Time(time.tv_nsec);
}

constexpr std::size_t kTried = 4;  // oneDNN names its implementations in the order it likes them
constexpr double kHopeless = 1.5;  // times the fastest in the first turn: not tried again
constexpr double kGain = 0.95;     // of the time of oneDNN's own choice
constexpr int kFewestTurns = 3, kMostTurns = 15;
constexpr std::chrono::milliseconds kLong(12);  // once there were the fewest turns, no more

/// Memory of zeros, which candidates that expect the same layout share.
class Memories {
 public:
  dnnl::memory Of(int operand, const dnnl::memory::desc& layout) {
    for (const dnnl::memory& memory : made_[operand]) {
      if (memory.get_desc() == layout) return memory;
    }
    dnnl::memory memory(layout, Engine());
    std::memset(memory.get_data_handle(), 0, layout.get_size());
    made_[operand].push_back(memory);
    return memory;
  }

 private:
  std::map<int, std::vector<dnnl::memory>> made_;
};

class Candidate {
 public:
  Candidate(Description description, std::string name, int threads, Memories* memories)
      : name_(std::move(name)) {
    description.implementation = name_;
    const Prepared prepared = Prepare(description, threads);
    for (const Prepared::Binding& binding : prepared.bindings) {
      arguments_.emplace(binding.execution_argument,
                         memories->Of(binding.operand, binding.expected));
    }
    if (prepared.scratchpad.get_size() > 0) {
      arguments_.emplace(DNNL_ARG_SCRATCHPAD, dnnl::memory(prepared.scratchpad, Engine()));
    }
    primitive_ = prepared.make();
  }

  void Run(dnnl::stream& stream, int threads) {
    const Time begin = Now(threads);
    primitive_.execute(stream, arguments_);
    stream.wait();
    least_ = std::min(least_, Now(threads) - begin);
  }

  /// Forget the runs so far.
  void Reset() { least_ = Time::max(); }

  const std::string& name() const { return name_; }
  Time least() const { return least_; }

 private:
  std::string name_;
  std::unordered_map<int, dnnl::memory> arguments_;
  dnnl::primitive primitive_;
  Time least_ = Time::max();
};

bool IsFaster(const Candidate& a, const Candidate& b) { return a.least() < b.least(); }

/// Those that have a chance after a first run, which also warms up; the first is always kept.
void DropHopeless(std::vector<Candidate>* candidates, dnnl::stream& stream, int threads) {
  for (Candidate& candidate : *candidates) candidate.Run(stream, threads);
  const auto limit =
      kHopeless * std::min_element(candidates->begin(), candidates->end(), IsFaster)->least();
  const auto hopeless = [limit](const Candidate& each) { return each.least() > limit; };
  candidates->erase(std::remove_if(candidates->begin() + 1, candidates->end(), hopeless),
                    candidates->end());
  for (Candidate& candidate : *candidates) candidate.Reset();
}

/// In turns, so that other work on the machine meets all of them.
std::string Fastest(std::vector<Candidate> candidates, int threads) {
  dnnl::stream stream(Engine());
  DropHopeless(&candidates, stream, threads);
  if (candidates.size() == 1) return "";
  const Time begin = Now(threads);
  for (int turn = 0; turn < kMostTurns; ++turn) {
    if (turn >= kFewestTurns && Now(threads) - begin > kLong) break;
    for (Candidate& candidate : candidates) candidate.Run(stream, threads);
  }
  const auto best = std::min_element(candidates.begin(), candidates.end(), IsFaster);
  return best->least() < kGain * candidates.front().least() ? best->name() : "";
}

}  // namespace

std::string FastestImplementation(const Description& description, int cores) {
  std::string found;
  if (IsOwn(description.primitive) || MatrixVector::Computes(description)) return found;
  const int threads = description.cores.Of(cores);
  threads::Enter(threads, [&] {
    std::vector<Candidate> candidates;
    Memories memories;
    for (const std::string& name : ImplementationsOf(description, threads, kTried)) {
      candidates.emplace_back(description, name, threads, &memories);
    }
    if (candidates.size() > 1) found = Fastest(std::move(candidates), threads);
  });
  return found;
}

}  // namespace tvm_sched::onednn
