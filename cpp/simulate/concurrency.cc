#include "concurrency.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <unordered_map>
#include <utility>

namespace tvm_sched::simulate {
namespace {

/*! \brief Of a nanosecond: what floating-point sums may be above the truth. */
constexpr double kSlack = 1e-3;

Nanoseconds RoundUp(double value) {
  return Nanoseconds{static_cast<int64_t>(std::ceil(value - kSlack))};
}

/*! \brief Mean of the measured pairs' ratios among operators; 1 where none was measured. */
template <typename Ratio>
double MeanRatio(size_t count, Ratio ratio) {
  double sum = 0;
  int measured = 0;
  for (size_t i = 0; i < count; ++i) {
    for (size_t k = i + 1; k < count; ++k) {
      const double r = ratio(i, k);
      if (r > 0) {
        sum += r;
        ++measured;
      }
    }
  }
  return measured == 0 ? 1 : sum / measured;
}

}  // namespace

Concurrency::Concurrency(double serial_share, size_t devices, size_t resources,
                         std::vector<double> utilisation)
    : serial_share_(serial_share),
      devices_(devices),
      resources_(resources),
      utilisation_(std::move(utilisation)) {}

void Concurrency::AddPair(int32_t device, Member first, Member second, Nanoseconds together) {
  const Member members[] = {first, second};
  const auto [a, b] = std::minmax(first.op, second.op);
  ratio_[{device, a, b}] = static_cast<double>(together.count) / Formula(device, members);
}

double Concurrency::PairRatio(int32_t device, int32_t a, int32_t b) const {
  if (ratio_.empty()) return 0;
  const auto found = ratio_.find({device, std::min(a, b), std::max(a, b)});
  return found == ratio_.end() ? 0 : found->second;
}

double Concurrency::Formula(int32_t device, std::span<const Member> members) const {
  double sum = 0, longest = 0;
  std::vector<double> used(resources_);
  std::unordered_map<int32_t, double> stream;
  for (const Member& member : members) {
    const auto alone = static_cast<double>(member.alone.count);
    sum += alone;
    longest = std::max(longest, stream[member.stream] += alone);
    for (size_t r = 0; r < resources_; ++r) used[r] += alone * Utilisation(member.op, device, r);
  }
  if (has_threads(device)) longest = LongestOnThreads(device, members);
  for (double time : used) longest = std::max(longest, time);
  return serial_share_ * sum + (1 - serial_share_) * longest;
}

/*! \brief By Amdahl's law from the times on one thread and on all of them. */
double Concurrency::TimeOn(int32_t threads, int32_t device, const Member& member) const {
  const auto all = static_cast<double>(threads_[device]);
  const auto alone = static_cast<double>(member.alone.count);
  if (all == 1) return alone;
  const double one = Utilisation(member.op, device, 0) * all * alone;
  const double parallel = (one - alone) / (1 - 1 / all);
  return one - parallel + parallel / threads;
}

std::vector<int32_t> Concurrency::ThreadsOf(int32_t device, std::span<const Member> members) const {
  std::map<int32_t, std::pair<int32_t, double>> streams;  // threads and time of each
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
  std::vector<int32_t> result;
  for (const Member& m : members) result.push_back(streams[m.stream].first);
  return result;
}

/*! \brief Until the last stream ends, each on its threads; where there are more streams than
 * threads, the next one starts when a thread is free. */
double Concurrency::LongestOnThreads(int32_t device, std::span<const Member> members) const {
  const std::vector<int32_t> threads = ThreadsOf(device, members);
  std::vector<int32_t> order;  // streams by their first member
  std::unordered_map<int32_t, double> time;
  for (size_t i = 0; i < members.size(); ++i) {
    const auto [stream, added] = time.try_emplace(members[i].stream, 0);
    if (added) order.push_back(members[i].stream);
    stream->second += TimeOn(threads[i], device, members[i]);
  }
  std::vector<double> busy(std::max<size_t>(threads_[device], 1));
  for (int32_t stream : order) *std::ranges::min_element(busy) += time[stream];
  return std::ranges::max(busy);
}

Nanoseconds Concurrency::StageTime(int32_t device, std::span<const Member> members) const {
  if (members.size() == 1) return members[0].alone;
  std::unordered_map<int32_t, Nanoseconds> stream;
  Nanoseconds longest;
  for (const Member& m : members) longest = std::max(longest, stream[m.stream] += m.alone);
  if (stream.size() == 1) return longest;
  const double ratio = MeanRatio(members.size(), [&](size_t i, size_t k) {
    return PairRatio(device, members[i].op, members[k].op);
  });
  double time = ratio * Formula(device, members);
  // Where operators of one stream follow each other, the formula can promise what no sharing of the
  // device can keep, and what the lower bounds exclude: small operators first, large ones after.
  if (stream.size() < members.size() && !has_threads(device))
    time = std::max(time, OverlapTime(device, members));
  return std::max(longest, RoundUp(time));
}

/*! \brief Time until all streams have ended that share the device from a common start. */
double Concurrency::OverlapTime(int32_t device, std::span<const Member> members) const {
  std::map<int32_t, std::vector<const Member*>> streams;
  for (auto member = members.rbegin(); member != members.rend(); ++member)
    streams[member->stream].push_back(&*member);
  std::map<int32_t, double> rest;
  for (const auto& [number, queue] : streams)
    rest[number] = static_cast<double>(queue.back()->alone.count);
  double now = 0;
  std::vector<int32_t> running;
  while (!rest.empty()) {
    running.clear();
    double least = std::numeric_limits<double>::infinity();
    for (const auto& [number, left] : rest) {
      running.push_back(streams[number].back()->op);
      least = std::min(least, left);
    }
    now += least * Slowdown(device, running);
    for (auto entry = rest.begin(); entry != rest.end();) {
      auto& [number, left] = *entry;
      left -= least;
      auto& queue = streams[number];
      if (left > 0) {
        ++entry;
      } else if (queue.pop_back(); queue.empty()) {
        entry = rest.erase(entry);
      } else {
        left = static_cast<double>(queue.back()->alone.count);
        ++entry;
      }
    }
  }
  return now;
}

double Concurrency::Slowdown(int32_t device, std::span<const int32_t> running) const {
  if (running.size() < 2) return 1;
  double most = 1;
  for (size_t r = 0; r < resources_; ++r) {
    double used = 0;
    for (int32_t op : running) used += Utilisation(op, device, r);
    most = std::max(most, used);
  }
  const double ratio = MeanRatio(running.size(), [&](size_t i, size_t k) {
    return PairRatio(device, running[i], running[k]);
  });
  const auto count = static_cast<double>(running.size());
  return std::max(1.0, ratio * (serial_share_ * count + (1 - serial_share_) * most));
}

}  // namespace tvm_sched::simulate
