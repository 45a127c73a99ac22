// A schedule that grows operator by operator: each brings its tensors and is timed by
// docs/model.md.
#ifndef TVM_SCHED_SEARCH_BUILDER_H_
#define TVM_SCHED_SEARCH_BUILDER_H_

#include <cstdint>
#include <span>
#include <vector>

#include "simulate/problem.h"
#include "simulate/schedule.h"

namespace tvm_sched::search {

/*!
 * \brief Appends operators and stages behind all that was appended before, with the loads and
 * copies they need, each at once and on the way that arrives first.
 *
 * Linear in tensors read. Memory is not looked at.
 */
class Builder {
 public:
  explicit Builder(const simulate::Problem& problem);

  /*! \brief Back to nothing; keeps its memory. */
  void Clear();

  /*!
   * \brief Appends an operator; with direct host access only where it cannot run otherwise.
   * \return Its end, or kNever where the operator or one of its tensors cannot get there.
   */
  simulate::Nanoseconds Run(simulate::OperatorId op, simulate::DeviceId device);

  /*! \brief Appends operators that start together, with their streams; they get the stage's number.
   */
  simulate::Nanoseconds RunStage(std::span<const simulate::OperatorId> ops,
                                 std::span<const int32_t> streams, simulate::DeviceId device,
                                 int32_t stage);

  /*! \brief End of the last operator. */
  simulate::Nanoseconds latency() const { return latency_; }
  const simulate::Schedule& schedule() const { return schedule_; }
  /*! \brief When each placement of the schedule starts and ends. */
  const std::vector<simulate::Nanoseconds>& starts() const { return starts_; }
  const std::vector<simulate::Nanoseconds>& ends() const { return ends_; }

 private:
  /*! \brief When all tensors that an operator reads from its device are there. */
  simulate::Nanoseconds Gather(simulate::OperatorId op, simulate::DeviceId device, bool direct);
  simulate::Nanoseconds Bring(simulate::TensorId tensor, simulate::DeviceId device);
  simulate::Nanoseconds ChannelsFree(int32_t route) const;
  void Occupy(int32_t route, simulate::Nanoseconds until);
  void Place(simulate::Placement placement, simulate::Nanoseconds start, simulate::Nanoseconds end);

  const simulate::Problem& problem_;
  simulate::Schedule schedule_;
  std::vector<simulate::Nanoseconds> starts_, ends_, device_free_, channel_free_;
  /*! \brief By tensor and device; kNever where it is not. */
  simulate::Matrix<simulate::Nanoseconds> at_;
  simulate::Nanoseconds latency_;
};

}  // namespace tvm_sched::search

#endif  // TVM_SCHED_SEARCH_BUILDER_H_
