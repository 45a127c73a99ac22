// Improves a finished schedule by small changes and replays.
#ifndef TVM_SCHED_SEARCH_LOCAL_SEARCH_H_
#define TVM_SCHED_SEARCH_LOCAL_SEARCH_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "search/random.h"
#include "search/replay.h"

namespace tvm_sched::search {

/// A run that a schedule is judged by, and its share of the judgement.
struct WeightedRun {
  const Instance* instance;
  double share;
};

/// Late-acceptance hill climbing (Burke and Bykov, EJOR 258, 2017) over sequences of events.
///
/// Each try changes one thing, most often one that the latency waits for, and replays the sequence
/// with repairs. A search that finds nothing more starts again from the best. Whatever is asked in
/// whatever portions, the same seed gives the same schedules.
///
/// With several runs of one graph on one machine (cold and warm ones), the latency is the mean over
/// them by their shares, which sum up to 1; changes are looked for where the first run waits.
class LocalSearch {
 public:
  /// `start` is the sequence of a whole schedule; a latency of `goal` or less ends it.
  LocalSearch(const Instance& instance, double memory_scale, const Sequence& start,
              std::uint64_t seed, Nanoseconds goal)
      : LocalSearch({{&instance, 1.0}}, memory_scale, start, seed, goal) {}
  LocalSearch(const std::vector<WeightedRun>& runs, double memory_scale, const Sequence& start,
              std::uint64_t seed, Nanoseconds goal);

  /// Replays about that many more events; false when it is of no use to go on.
  bool Step(std::int64_t events);
  /// Latency of the best schedule, whose sequence is empty where the start could not be
  /// played.
  Nanoseconds latency() const { return best_latency_; }
  const Sequence& best() const { return best_.events(); }

 private:
  /// The sequence in the other runs.
  struct OtherRun {
    double share;
    Replay replay;
    PartialSchedule state;
  };

  void Try();
  bool Play(const Sequence& sequence, Nanoseconds limit);
  void Accept();
  void Reheat();
  bool Change(Sequence* sequence);
  std::size_t Position();
  bool RunNear(std::size_t position, std::size_t* run) const;
  bool PlaceElsewhere(std::size_t position, Sequence* sequence);
  bool PlaceTogether(std::size_t position, Sequence* sequence);
  bool PlaceBlock(std::size_t position, Sequence* sequence);
  bool Shift(std::size_t position, Sequence* sequence);
  bool ChangePath(std::size_t position, Sequence* sequence);
  bool SetPlace(Event* run, DeviceId device);

  const Instance& instance_;
  SplitMix64 random_;
  Nanoseconds goal_;
  Replay replay_;
  double share_;
  std::vector<OtherRun> others_;
  PartialSchedule now_, next_, best_;
  Nanoseconds now_latency_{}, next_latency_{}, best_latency_{};
  Sequence sequence_;
  std::vector<std::size_t> critical_;
  std::vector<Nanoseconds> history_;
  Nanoseconds lowest_{};
  std::int64_t patience_ = 0, all_patience_ = 0, tries_ = 0, played_ = 0;
  int vain_ = 0;
  bool dispatch_ = false;
};

}  // namespace tvm_sched::search

#endif  // TVM_SCHED_SEARCH_LOCAL_SEARCH_H_
