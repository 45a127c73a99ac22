#include "simulate/blocks.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <functional>
#include <limits>
#include <queue>
#include <stdexcept>
#include <utility>

namespace tvm_sched::simulate {
namespace {

/// Part of a block's work that counts as done: what floating-point sums can leave.
constexpr double kBlockRest = 1e-9;

/// Blocks of one kernel that started together on one multiprocessor.
struct Cohort {
  std::int32_t kernel;
  std::int64_t count;
  double rest = 1;
  double speed = 1;
};

struct Multiprocessor {
  BlockRoom room;  // what is left
  std::vector<Cohort> cohorts;
};

bool Fits(const BlockRoom& block, const BlockRoom& room) {
  return block.warps <= room.warps && block.registers <= room.registers &&
         block.shared_bytes <= room.shared_bytes && room.blocks > 0;
}

void Take(const BlockRoom& block, std::int64_t count, BlockRoom* room) {
  room->warps -= count * block.warps;
  room->registers -= count * block.registers;
  room->shared_bytes -= count * block.shared_bytes;
  room->blocks -= count;
}

/// What cohorts ask of a resource, each with the weight of its warps.
struct Request {
  Cohort* cohort;
  double amount, weight;
};

/// Slows cohorts so that together they ask for no more than all of a resource: those that
/// ask for more than their share, by weight, get that.
void Share(std::vector<Request>* requests) {
  double asked = 0, weight = 0;
  for (const Request& each : *requests) {
    asked += each.amount;
    weight += each.weight;
  }
  if (asked <= 1) return;
  std::ranges::sort(*requests, {}, [](const Request& each) { return each.amount / each.weight; });
  double left = 1;
  for (const Request& each : *requests) {
    const double share = left * each.weight / weight;
    const double given = std::min(each.amount, share);
    each.cohort->speed *= given / each.amount;
    left -= given;
    weight -= each.weight;
  }
}

class Gpu {
 public:
  Gpu(std::span<const BlockKernel> kernels, std::int64_t multiprocessors, const BlockRoom& room)
      : kernels_(kernels),
        processors_(multiprocessors, {room, {}}),
        waits_(kernels.size()),
        after_(kernels.size()),
        blocks_left_(kernels.size()),
        running_(kernels.size()),
        began_(kernels.size()) {
    times_.start.resize(kernels.size());
    times_.end.resize(kernels.size());
    for (std::size_t k = 0; k < kernels.size(); ++k) {
      if (!Fits(kernels[k].room, room))
        throw std::invalid_argument("a block fits on no multiprocessor");
      blocks_left_[k] = kernels[k].blocks;
      waits_[k] = kernels[k].before.size();
      for (std::int32_t p : kernels[k].before) after_[p].push_back(static_cast<std::int32_t>(k));
      if (waits_[k] == 0) Arrive(static_cast<std::int32_t>(k), 0);
    }
  }

  BlockTimes Run() {
    std::size_t ended = 0;
    while (ended < kernels_.size()) {
      while (!arriving_.empty() && arriving_.top().first <= now_) {
        queue_.push_back(arriving_.top().second);
        arriving_.pop();
      }
      Dispatch();
      SetSpeeds();
      const double next = std::min(NextEnd(), arriving_.empty() ? kLater : arriving_.top().first);
      if (next == kLater) throw std::invalid_argument("kernels wait for each other");
      ended += Advance(next);
    }
    times_.busy = Nanoseconds{std::llround(busy_)};
    return std::move(times_);
  }

 private:
  static constexpr double kLater = std::numeric_limits<double>::infinity();

  void Arrive(std::int32_t kernel, double now) {
    const BlockKernel& k = kernels_[kernel];
    const double ready = std::max(now, static_cast<double>(k.ready.count));
    arriving_.push({ready + static_cast<double>(k.overhead.count), kernel});
  }

  void Dispatch() {
    while (!queue_.empty()) {
      const std::int32_t kernel = queue_.front();
      Place(kernel);
      if (blocks_left_[kernel] > 0) return;
      queue_.pop_front();
    }
  }

  /// Blocks go one by one to the multiprocessor with most room for warps.
  void Place(std::int32_t kernel) {
    const BlockRoom& block = kernels_[kernel].room;
    using Entry = std::pair<std::int64_t, std::int32_t>;  // most room first, then the lowest number
    std::priority_queue<Entry> free;
    for (std::size_t p = 0; p < processors_.size(); ++p) {
      if (Fits(block, processors_[p].room))
        free.push({processors_[p].room.warps, -static_cast<std::int32_t>(p)});
    }
    std::vector<std::int64_t> placed(processors_.size());
    while (!free.empty() && blocks_left_[kernel] > 0) {
      const std::int32_t p = -free.top().second;
      free.pop();
      BlockRoom& room = processors_[p].room;
      Take(block, 1, &room);
      ++placed[p];
      --blocks_left_[kernel];
      if (Fits(block, room)) free.push({room.warps, -p});
    }
    for (std::size_t p = 0; p < processors_.size(); ++p) {
      if (placed[p] > 0) Begin(kernel, static_cast<std::int32_t>(p), placed[p]);
    }
  }

  /// Blocks that have taken their room.
  void Begin(std::int32_t kernel, std::int32_t p, std::int64_t count) {
    if (!began_[kernel]) {
      began_[kernel] = true;
      times_.start[kernel] = Nanoseconds{std::llround(now_)};
    }
    running_[kernel] += count;
    processors_[p].cohorts.push_back({kernel, count});
  }

  void SetSpeeds() {
    std::vector<Request> bandwidth;
    for (Multiprocessor& processor : processors_) {
      std::vector<Request> arithmetic;
      for (Cohort& cohort : processor.cohorts) {
        const BlockKernel& kernel = kernels_[cohort.kernel];
        const auto count = static_cast<double>(cohort.count);
        cohort.speed = 1;
        const double weight = count * static_cast<double>(kernel.room.warps);
        if (kernel.arithmetic > 0)
          arithmetic.push_back({&cohort, count * kernel.arithmetic, weight});
      }
      Share(&arithmetic);
      for (Cohort& cohort : processor.cohorts) {
        const BlockKernel& kernel = kernels_[cohort.kernel];
        const auto count = static_cast<double>(cohort.count);
        const double weight = count * static_cast<double>(kernel.room.warps);
        if (kernel.bandwidth > 0)
          bandwidth.push_back({&cohort, count * kernel.bandwidth * cohort.speed, weight});
      }
    }
    Share(&bandwidth);
  }

  double Left(const Cohort& cohort) const {
    return cohort.rest * kernels_[cohort.kernel].block_ns / cohort.speed;
  }

  double NextEnd() const {
    double next = kLater;
    for (const Multiprocessor& processor : processors_) {
      for (const Cohort& cohort : processor.cohorts) next = std::min(next, now_ + Left(cohort));
    }
    return next;
  }

  /// What waits takes the room of one multiprocessor.
  void Refill(std::int32_t p) {
    while (!queue_.empty()) {
      const std::int32_t kernel = queue_.front();
      const BlockRoom& block = kernels_[kernel].room;
      std::int64_t placed = 0;
      for (; blocks_left_[kernel] > 0 && Fits(block, processors_[p].room); ++placed) {
        Take(block, 1, &processors_[p].room);
        --blocks_left_[kernel];
      }
      if (placed > 0) Begin(kernel, p, placed);
      if (blocks_left_[kernel] > 0) return;
      queue_.pop_front();
    }
  }

  /// Goes on to a moment; returns how many kernels end there.
  std::size_t Advance(double next) {
    const double passed = next - now_;
    now_ = next;
    std::size_t ended = 0;
    for (std::size_t p = 0; p < processors_.size(); ++p) {
      if (!processors_[p].cohorts.empty()) busy_ += passed;
      const auto erased = std::erase_if(processors_[p].cohorts, [&](Cohort& cohort) {
        const BlockKernel& kernel = kernels_[cohort.kernel];
        cohort.rest -= passed * cohort.speed / kernel.block_ns;
        if (cohort.rest > kBlockRest) return false;
        Take(kernel.room, -cohort.count, &processors_[p].room);
        running_[cohort.kernel] -= cohort.count;
        if (running_[cohort.kernel] == 0 && blocks_left_[cohort.kernel] == 0) {
          End(cohort.kernel);
          ++ended;
        }
        return true;
      });
      if (erased > 0) Refill(static_cast<std::int32_t>(p));
    }
    return ended;
  }

  void End(std::int32_t kernel) {
    times_.end[kernel] = Nanoseconds{static_cast<std::int64_t>(std::ceil(now_ - 1e-3))};
    for (std::int32_t next : after_[kernel]) {
      if (--waits_[next] == 0) Arrive(next, now_);
    }
  }

  std::span<const BlockKernel> kernels_;
  std::vector<Multiprocessor> processors_;
  std::vector<std::size_t> waits_;
  std::vector<std::vector<std::int32_t>> after_;
  std::vector<std::int64_t> blocks_left_, running_;
  std::vector<bool> began_;
  using Arrival = std::pair<double, std::int32_t>;
  std::priority_queue<Arrival, std::vector<Arrival>, std::greater<>> arriving_;
  std::deque<std::int32_t> queue_;
  double now_ = 0, busy_ = 0;
  BlockTimes times_;
};

}  // namespace

BlockTimes SimulateBlocks(std::span<const BlockKernel> kernels, std::int64_t multiprocessors,
                          const BlockRoom& multiprocessor) {
  return Gpu(kernels, multiprocessors, multiprocessor).Run();
}

}  // namespace tvm_sched::simulate
