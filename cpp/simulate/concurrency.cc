#include "simulate/concurrency.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <optional>
#include <unordered_map>
#include <utility>

namespace tvm_sched::simulate {
namespace {

/// Of a nanosecond: what floating-point sums may be above the truth.
constexpr double kSlack = 1e-3;

Nanoseconds RoundUp(double value) {
  return Nanoseconds{static_cast<std::int64_t>(std::ceil(value - kSlack))};
}

/// Mean of the measured pairs' ratios among operators; none where none was measured.
template <typename Ratio>
std::optional<double> MeanRatio(std::size_t count, Ratio ratio) {
  double sum = 0;
  int measured = 0;
  for (std::size_t i = 0; i < count; ++i) {
    for (std::size_t k = i + 1; k < count; ++k) {
      const double r = ratio(i, k);
      if (r > 0) {
        sum += r;
        ++measured;
      }
    }
  }
  if (measured == 0) return std::nullopt;
  return sum / measured;
}

/// Streams that start at once and go each through its members at the pace of `times`: calls
/// `phase(time, running)` for each time in which the same members run.
template <typename Phase>
void ForPhases(std::span<const Member> members, const std::vector<double>& times, Phase phase) {
  std::map<std::int32_t, std::vector<std::size_t>>
      streams;  // what is left of each, the next one last
  for (std::size_t i = members.size(); i-- > 0;) streams[members[i].stream].push_back(i);
  std::vector<double> rest = times;
  std::vector<std::size_t> running;
  while (!streams.empty()) {
    running.clear();
    double least = std::numeric_limits<double>::infinity();
    for (const auto& [number, queue] : streams) {
      running.push_back(queue.back());
      least = std::min(least, rest[queue.back()]);
    }
    phase(least, running);
    for (auto entry = streams.begin(); entry != streams.end();) {
      auto& queue = entry->second;
      if ((rest[queue.back()] -= least) <= 0) queue.pop_back();
      entry = queue.empty() ? streams.erase(entry) : std::next(entry);
    }
  }
}

}  // namespace

Concurrency::Concurrency(double serial_share, std::size_t devices, std::size_t resources,
                         std::vector<double> utilisation)
    : serial_share_(serial_share),
      devices_(devices),
      resources_(resources),
      utilisation_(std::move(utilisation)) {}

void Concurrency::SetContention(std::vector<double> excess, std::vector<double> crowding,
                                double factor) {
  excess_ = std::move(excess);
  crowding_ = std::move(crowding);
  factor_ = factor;
}

void Concurrency::AddPair(std::int32_t device, Member first, Member second, Nanoseconds together) {
  const Member members[] = {first, second};
  const auto [a, b] = std::minmax(first.op, second.op);
  ratio_[{device, a, b}] = static_cast<double>(together.count) / Formula(device, members);
}

double Concurrency::LeastPairRatio() const {
  double least = 1;
  for (const auto& [key, ratio] : ratio_) least = std::min(least, ratio);
  return least;
}

double Concurrency::PairRatio(std::int32_t device, std::int32_t a, std::int32_t b) const {
  if (ratio_.empty()) return 0;
  const auto found = ratio_.find({device, std::min(a, b), std::max(a, b)});
  return found == ratio_.end() ? 0 : found->second;
}

double Concurrency::Formula(std::int32_t device, std::span<const Member> members) const {
  const std::vector<double> times = TimesInStage(device, members);
  double sum = 0, longest = 0;
  std::vector<double> used(resources_);
  std::unordered_map<std::int32_t, double> stream;
  for (std::size_t i = 0; i < members.size(); ++i) {
    const Member& member = members[i];
    sum += times[i];
    longest = std::max(longest, stream[member.stream] += times[i]);
    const auto alone = static_cast<double>(member.alone.count);
    for (std::size_t r = 0; r < resources_; ++r)
      used[r] += alone * Utilisation(member.op, device, r);
  }
  if (has_threads(device)) longest = LastOfStreams(device, members, times);
  for (double time : used) longest = std::max(longest, time);
  return serial_share_ * sum + (1 - serial_share_) * longest;
}

/// By Amdahl's law from the times on one thread and on all of them.
double Concurrency::TimeOn(std::int32_t threads, std::int32_t device, const Member& member) const {
  const auto all = static_cast<double>(threads_[device]);
  const auto alone = static_cast<double>(member.alone.count);
  if (all == 1) return alone;
  const double one = Utilisation(member.op, device, 0) * all * alone;
  const double parallel = (one - alone) / (1 - 1 / all);
  return one - parallel + parallel / threads;
}

std::vector<std::int32_t> Concurrency::ThreadsOf(std::int32_t device,
                                                 std::span<const Member> members) const {
  std::map<std::int32_t, std::pair<std::int32_t, double>> streams;  // threads and time of each
  for (const Member& m : members) {
    auto& [threads, time] = streams[m.stream];
    threads = 1;
    time += TimeOn(1, device, m);
  }
  // The next thread to the stream that takes longest: its time can only fall.
  for (auto left = threads_[device] - std::ssize(streams); left > 0; --left) {
    const auto longest = std::ranges::max_element(
        streams, {}, [](const auto& entry) { return entry.second.second; });
    auto& [threads, time] = longest->second;
    ++threads;
    time = 0;
    for (const Member& m : members) {
      if (m.stream == longest->first) time += TimeOn(threads, device, m);
    }
  }
  std::vector<std::int32_t> result;
  for (const Member& m : members) result.push_back(streams[m.stream].first);
  return result;
}

/// Of each member by itself, on the threads that it has in the stage.
std::vector<double> Concurrency::TimesInStage(std::int32_t device,
                                              std::span<const Member> members) const {
  std::vector<std::int32_t> threads;
  if (has_threads(device)) threads = ThreadsOf(device, members);
  std::vector<double> times;
  for (std::size_t i = 0; i < members.size(); ++i) {
    times.push_back(threads.empty() ? static_cast<double>(members[i].alone.count)
                                    : TimeOn(threads[i], device, members[i]));
  }
  return times;
}

/// Until the last stream ends, each on its threads; where there are more streams than
/// threads, the next one starts when a thread is free.
double Concurrency::LastOfStreams(std::int32_t device, std::span<const Member> members,
                                  std::span<const double> times) const {
  std::vector<std::int32_t> order;  // streams by their first member
  std::unordered_map<std::int32_t, double> time;
  for (std::size_t i = 0; i < members.size(); ++i) {
    const auto [stream, added] = time.try_emplace(members[i].stream, 0);
    if (added) order.push_back(members[i].stream);
    stream->second += times[i];
  }
  std::vector<double> busy(std::max<std::size_t>(threads_[device], 1));
  for (std::int32_t stream : order) *std::ranges::min_element(busy) += time[stream];
  return std::ranges::max(busy);
}

Nanoseconds Concurrency::StageTime(std::int32_t device, std::span<const Member> members) const {
  if (members.size() == 1) return members[0].alone;
  std::unordered_map<std::int32_t, Nanoseconds> stream;
  Nanoseconds longest;
  for (const Member& m : members) longest = std::max(longest, stream[m.stream] += m.alone);
  if (stream.size() == 1) return longest;
  const std::optional<double> measured =
      MeanRatio(members.size(), [&](std::size_t i, std::size_t k) {
        return PairRatio(device, members[i].op, members[k].op);
      });
  const double formula = Formula(device, members);
  double time =
      measured ? *measured * formula : factor_ * (formula + StageContention(device, members));
  // Where operators of one stream follow each other, the formula can promise what no sharing of the
  // device can keep, and what the lower bounds exclude: small operators first, large ones after.
  if (stream.size() < members.size() && !has_threads(device))
    time = std::max(time, OverlapTime(device, members));
  return std::max(longest, RoundUp(time));
}

/// Time until all streams have ended that share the device from a common start.
double Concurrency::OverlapTime(std::int32_t device, std::span<const Member> members) const {
  std::vector<double> times;
  for (const Member& m : members) times.push_back(static_cast<double>(m.alone.count));
  double now = 0;
  std::vector<std::int32_t> ops;
  ForPhases(members, times, [&](double time, const std::vector<std::size_t>& running) {
    ops.clear();
    for (std::size_t i : running) ops.push_back(members[i].op);
    now += time * Slowdown(device, ops);
  });
  return now;
}

/// What a stage takes longer because its streams get in each other's way.
double Concurrency::StageContention(std::int32_t device, std::span<const Member> members) const {
  if (excess_.empty() && crowding_.empty()) return 0;
  // On a device with threads each stream has cores of its own: only what lies behind them is
  // shared.
  const std::vector<double> times = TimesInStage(device, members);
  double sum = 0;
  std::vector<double> used(resources_);
  ForPhases(members, times, [&](double time, const std::vector<std::size_t>& running) {
    std::ranges::fill(used, 0);
    for (std::size_t i : running) {
      const double pace = static_cast<double>(members[i].alone.count) / times[i];
      for (std::size_t r = has_threads(device) ? 1 : 0; r < resources_; ++r)
        used[r] += pace * Utilisation(members[i].op, device, r);
    }
    sum += time * Excess(used);
  });
  if (crowding_.empty() || has_threads(device)) return sum;
  std::map<std::int32_t, double> largest;  // of each stream: what its largest operator takes
  double all = 0;
  for (const Member& m : members) {
    double& most = largest[m.stream];
    most = std::max(most, Utilisation(m.op, device, 0));
  }
  for (const auto& [number, most] : largest) all += most;
  for (std::size_t i = 0; i < members.size(); ++i) {
    const double others = all - largest[members[i].stream];
    sum += times[i] * CrowdingBeside(device, members[i].op, others);
  }
  return sum;
}

double Concurrency::Excess(std::span<const double> used) const {
  double sum = 0;
  for (std::size_t r = 0; r < excess_.size(); ++r) sum += excess_[r] * std::max(0.0, used[r] - 1);
  return sum;
}

/// Blocks of an operator that starts while others have a part of the device crowd on what
/// they leave.
double Concurrency::CrowdingBeside(std::int32_t device, std::int32_t op, double others) const {
  const double part = std::min(1.0, others);
  return crowding_.empty() ? 0 : crowding_[op * devices_ + device] * part * part;
}

double Concurrency::Crowding(std::int32_t device, std::int32_t op,
                             std::span<const std::int32_t> running) const {
  if (crowding_.empty() || running.size() < 2) return 1;
  double others = -Utilisation(op, device, 0);
  for (std::int32_t other : running) {
    others += Utilisation(other, device, 0);
    if (PairRatio(device, op, other) > 0) return 1;
  }
  return 1 + CrowdingBeside(device, op, others);
}

double Concurrency::Slowdown(std::int32_t device, std::span<const std::int32_t> running) const {
  if (running.size() < 2) return 1;
  std::vector<double> used(resources_);
  double most = 1;  // costs that only have pairs know no resource
  for (std::size_t r = 0; r < resources_; ++r) {
    for (std::int32_t op : running) used[r] += Utilisation(op, device, r);
    most = std::max(most, used[r]);
  }
  const std::optional<double> measured = MeanRatio(
      running.size(),
      [&](std::size_t i, std::size_t k) { return PairRatio(device, running[i], running[k]); });
  const auto count = static_cast<double>(running.size());
  const double formula = serial_share_ * count + (1 - serial_share_) * most;
  return std::max(1.0, measured ? *measured * formula : factor_ * (formula + Excess(used)));
}

}  // namespace tvm_sched::simulate
