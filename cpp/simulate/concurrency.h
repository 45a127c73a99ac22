// How long operators take that run together on one device (docs/model.md, "Operators side by
// side").
#ifndef TVM_SCHED_SIMULATE_CONCURRENCY_H_
#define TVM_SCHED_SIMULATE_CONCURRENCY_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "simulate/units.h"

namespace tvm_sched::simulate {

/// An operator of a set that runs together; operators of one stream run one after another.
struct Member {
  std::int32_t op;
  std::int32_t stream;
  Nanoseconds alone;
};

/// The part of each resource that operators use, and measured pairs.
class Concurrency {
 public:
  /// Nothing is known: a device runs one operator at a time.
  Concurrency() = default;

  /// \param utilisation By operator, device and resource, above 0 and at most 1.
  Concurrency(double serial_share, std::size_t devices, std::size_t resources,
              std::vector<double> utilisation);

  /// What sharing costs beyond the parts that operators use, and how far off it all is.
  /// \param excess By resource: seconds added for a second in which it is asked for once more than
  /// it has. \param crowding By operator and device: by which part of its time an operator gets
  /// longer that starts while others fill the device; empty: none. \param factor Of what sets take
  /// that were not measured.
  void SetContention(std::vector<double> excess, std::vector<double> crowding, double factor);

  /// Devices whose cores are given to streams: by device the number of threads, or 0.
  void SetThreads(std::vector<std::int32_t> threads) { threads_ = std::move(threads); }

  bool known() const { return resources_ > 0; }

  /// Whether a device gives each stream of a stage threads of its own; outside of stages it
  /// runs one operator at a time.
  bool has_threads(std::int32_t device) const { return !threads_.empty() && threads_[device] > 0; }

  /// Of each member of a stage on such a device: the threads that compute it.
  std::vector<std::int32_t> ThreadsOf(std::int32_t device, std::span<const Member> members) const;

  /// Two operators take `together` on a device; `first` and `second` alone.
  void AddPair(std::int32_t device, Member first, Member second, Nanoseconds together);

  /// The least that a measured pair takes of what the formula says of it; at most 1.
  double LeastPairRatio() const;

  /// Time from the common start of a stage's operators to their common end.
  Nanoseconds StageTime(std::int32_t device, std::span<const Member> members) const;

  /// By how much each of the operators that run at a moment, one of each stream, is slower
  /// than alone; at least 1.
  double Slowdown(std::int32_t device, std::span<const std::int32_t> running) const;

  /// How many times as much work an operator has that starts while the others run; at least
  /// 1. `running` has it, too.
  double Crowding(std::int32_t device, std::int32_t op,
                  std::span<const std::int32_t> running) const;

 private:
  double Utilisation(std::int32_t op, std::int32_t device, std::size_t resource) const {
    return utilisation_[(op * devices_ + device) * resources_ + resource];
  }
  double Formula(std::int32_t device, std::span<const Member> members) const;
  double TimeOn(std::int32_t threads, std::int32_t device, const Member& member) const;
  std::vector<double> TimesInStage(std::int32_t device, std::span<const Member> members) const;
  double LastOfStreams(std::int32_t device, std::span<const Member> members,
                       std::span<const double> times) const;
  double PairRatio(std::int32_t device, std::int32_t a, std::int32_t b) const;
  double OverlapTime(std::int32_t device, std::span<const Member> members) const;
  double StageContention(std::int32_t device, std::span<const Member> members) const;
  double Excess(std::span<const double> used) const;
  double CrowdingBeside(std::int32_t device, std::int32_t op, double others) const;

  double serial_share_ = 0, factor_ = 1;
  std::size_t devices_ = 0, resources_ = 0;
  std::vector<double> utilisation_;
  std::vector<double> excess_, crowding_;
  std::vector<std::int32_t> threads_;
  /// Measured over predicted, by device and operators in ascending order.
  std::map<std::tuple<std::int32_t, std::int32_t, std::int32_t>, double> ratio_;
};

}  // namespace tvm_sched::simulate

#endif  // TVM_SCHED_SIMULATE_CONCURRENCY_H_
