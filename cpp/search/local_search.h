// Improves a finished schedule by small changes and replays.
#ifndef TVM_SCHED_SEARCH_LOCAL_SEARCH_H_
#define TVM_SCHED_SEARCH_LOCAL_SEARCH_H_

#include <cstdint>
#include <vector>

#include "replay.h"

namespace tvm_sched::search {

/*! \brief Random numbers that are the same on every machine (splitmix64, Steele et al. 2014). */
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t Next();
  /*! \brief A number below `limit`, which is above 0. */
  size_t Below(size_t limit) { return static_cast<size_t>(Next() % limit); }
  bool Chance(double probability) {
    return static_cast<double>(Next() >> 11) * 0x1p-53 < probability;
  }

 private:
  uint64_t state_;
};

/*!
 * \brief Late-acceptance hill climbing (Burke and Bykov, EJOR 258, 2017) over sequences of events.
 *
 * Each try changes one thing, most often one that the latency waits for, and replays the sequence
 * with repairs. A search that finds nothing more starts again from the best. Whatever is asked in
 * whatever portions, the same seed gives the same schedules.
 */
class LocalSearch {
 public:
  /*! \brief `start` is the sequence of a whole schedule; a latency of `goal` or less ends it. */
  LocalSearch(const Instance& instance, double memory_scale, const Sequence& start, uint64_t seed,
              Nanoseconds goal);

  /*! \brief Replays about that many more events; false when it is of no use to go on. */
  bool Step(int64_t events);
  /*! \brief Latency of the best schedule, whose sequence is empty where the start could not be
   * played. */
  Nanoseconds latency() const { return best_.latency(); }
  const Sequence& best() const { return best_.events(); }

 private:
  void Try();
  void Accept();
  void Reheat();
  bool Change(Sequence* sequence);
  size_t Position();
  bool RunNear(size_t position, size_t* run) const;
  bool PlaceElsewhere(size_t position, Sequence* sequence);
  bool PlaceTogether(size_t position, Sequence* sequence);
  bool PlaceBlock(size_t position, Sequence* sequence);
  bool Shift(size_t position, Sequence* sequence);
  bool OtherWay(size_t position, Sequence* sequence);
  bool SetPlace(Event* run, DeviceId device);

  const Instance& instance_;
  Random random_;
  Nanoseconds goal_;
  Replay replay_;
  PartialSchedule now_, next_, best_;
  Sequence sequence_;
  std::vector<size_t> critical_;
  std::vector<Nanoseconds> history_;
  Nanoseconds lowest_{};
  int64_t patience_ = 0, all_patience_ = 0, tries_ = 0, played_ = 0;
  int vain_ = 0;
  bool dispatch_ = false;
};

}  // namespace tvm_sched::search

#endif  // TVM_SCHED_SEARCH_LOCAL_SEARCH_H_
