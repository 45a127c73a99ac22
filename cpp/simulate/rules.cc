#include "simulate/rules.h"

#include <set>
#include <sstream>
#include <stdexcept>
#include <utility>

namespace tvm_sched::simulate {
namespace {

void CheckIndex(const char* what, std::int64_t index, std::size_t size) {
  if (index < 0 || index >= static_cast<std::int64_t>(size)) {
    throw std::out_of_range(std::string(what) + " " + std::to_string(index) +
                            " is not one of the " + std::to_string(size) + " of the problem");
  }
}

/// One pass over a schedule; each method is one family of rules.
class Checker {
 public:
  Checker(const Problem& problem, const Schedule& schedule, std::size_t limit,
          std::vector<Violation>* violations)
      : problem_(problem), schedule_(schedule), limit_(limit), violations_(*violations) {
    arrivals_.event = {problem.tensors.size(), problem.devices.size(), Arrivals::kMissing};
    arrivals_.placement.assign(problem.operators(), kNone);
    arrivals_.host_read.assign(schedule.placements.size(), kNone);
  }

  Arrivals Run() {
    TensorsInPlace();
    FindResident();
    for (std::size_t p = 0; p < schedule_.placements.size(); ++p) Place(p);
    for (std::size_t o = 0; o < problem_.operators(); ++o) {
      if (arrivals_.placement[o] == kNone)
        Report({Rule::kOperatorMissing, static_cast<OperatorId>(o)});
    }
    for (std::size_t x = 0; x < schedule_.transfers.size(); ++x) Move(x);
    for (const Transfer& transfer : schedule_.transfers) CheckSource(transfer);
    for (std::size_t p = 0; p < schedule_.placements.size(); ++p) CheckReader(p);
    CheckStages();
    return std::move(arrivals_);
  }

 private:
  void Report(Violation violation) {
    if (violations_.size() < limit_) violations_.push_back(std::move(violation));
  }

  void TensorsInPlace() {
    for (std::size_t d = 0; d < problem_.devices.size(); ++d) {
      if (!problem_.devices[d].shares_host_memory) continue;
      for (std::size_t t = 0; t < problem_.tensors.size(); ++t) {
        if (problem_.tensors[t].in_host_memory()) arrivals_.event(t, d) = Arrivals::kInPlace;
      }
    }
  }

  /// What is evicted from some device is brought in every run.
  void FindResident() {
    std::vector<bool> remains(problem_.tensors.size());
    for (std::size_t t = 0; t < remains.size(); ++t) remains[t] = problem_.tensors[t].resident;
    const auto moves = [](const Transfer& transfer) {
      return transfer.kind != TransferKind::kHostRead;
    };
    for (const Transfer& transfer : schedule_.transfers) {
      if (moves(transfer) && transfer.evict) remains[transfer.item] = false;
    }
    for (const Transfer& transfer : schedule_.transfers) {
      arrivals_.resident.push_back(moves(transfer) && remains[transfer.item]);
    }
  }

  void Bring(TensorId tensor, DeviceId device, EventId event) {
    EventId& slot = arrivals_.event(tensor, device);
    if (slot != Arrivals::kMissing) {
      Report({Rule::kTensorTwice, kNone, tensor, device});
    } else {
      slot = event;
    }
  }

  void Place(std::size_t p) {
    const Placement& placement = schedule_.placements[p];
    const OperatorId op = placement.op;
    const DeviceId device = placement.device;
    const bool direct = placement.direct;
    if ((direct ? problem_.direct_time : problem_.operator_time)(op, device) == kNever) {
      Report({Rule::kOperatorForbidden, op, kNone, device, direct ? 1 : 0});
    }
    if (arrivals_.placement[op] != kNone) return Report({Rule::kOperatorTwice, op, kNone, device});
    arrivals_.placement[op] = static_cast<std::int32_t>(p);
    for (TensorId t : problem_.outputs[op]) Bring(t, device, static_cast<EventId>(p));
  }

  void Move(std::size_t x) {
    const auto& [kind, item, source, device, evict] = schedule_.transfers[x];
    const auto event = static_cast<EventId>(schedule_.placements.size() + x);
    if (kind == TransferKind::kHostRead) return HostRead(x);
    if (kind == TransferKind::kLoad) {
      if (!problem_.tensors[item].in_host_memory())
        return Report({Rule::kLoadActivation, kNone, item, device});
      if (problem_.devices[device].shares_host_memory)
        return Report({Rule::kLoadShared, kNone, item, device});
    } else {
      if (source == device) return Report({Rule::kCopySelf, kNone, item, device, source});
      if (problem_.RouteOf(source, device) == kNone)
        return Report({Rule::kCopyRoute, kNone, item, device, source});
    }
    Bring(item, device, event);
  }

  void HostRead(std::size_t x) {
    const Transfer& read = schedule_.transfers[x];
    const std::int32_t p = arrivals_.placement[read.item];
    if (p == kNone) return;  // the operator is missing; that has been said
    const Placement& placement = schedule_.placements[p];
    if (!placement.direct) return Report({Rule::kHostReadSpurious, read.item, kNone, read.device});
    if (placement.device != read.device) {
      return Report({Rule::kHostReadDevice, read.item, kNone, read.device, placement.device});
    }
    if (arrivals_.host_read[p] != kNone)
      return Report({Rule::kHostReadTwice, read.item, kNone, read.device});
    arrivals_.host_read[p] = static_cast<std::int32_t>(x);
  }

  void CheckSource(const Transfer& transfer) {
    if (transfer.kind != TransferKind::kCopy || transfer.source == transfer.device) return;
    if (arrivals_.event(transfer.item, transfer.source) == Arrivals::kMissing) {
      Report({Rule::kCopySource, kNone, transfer.item, transfer.device, transfer.source});
    }
  }

  void CheckReader(std::size_t p) {
    const Placement& placement = schedule_.placements[p];
    for (TensorId t : problem_.inputs[placement.op]) {
      if (ReadsFromDevice(problem_, placement, t) &&
          arrivals_.event(t, placement.device) == Arrivals::kMissing) {
        Report({Rule::kTensorMissing, placement.op, t, placement.device});
      }
    }
    const bool first = arrivals_.placement[placement.op] == static_cast<std::int32_t>(p);
    if (first && placement.direct && arrivals_.host_read[p] == kNone) {
      Report({Rule::kHostReadMissing, placement.op, kNone, placement.device});
    }
  }

  /// Stages are whole in the launch order of their device, and on no device with streams
  /// besides.
  void CheckStages() {
    const std::size_t devices = problem_.devices.size();
    std::vector<std::int32_t> last(devices, kNone), stream(devices, kNone);
    std::vector<bool> staged(devices);
    std::set<std::pair<DeviceId, std::int32_t>> known;
    arrivals_.leader.resize(schedule_.placements.size());
    arrivals_.overlaps.assign(devices, false);
    for (std::size_t p = 0; p < schedule_.placements.size(); ++p) {
      const Placement& placement = schedule_.placements[p];
      const DeviceId d = placement.device;
      std::int32_t& leader = arrivals_.leader[p] = static_cast<std::int32_t>(p);
      const std::int32_t before = std::exchange(last[d], leader);
      if (placement.stage > 0) {
        staged[d] = true;
        CheckStage(placement);
        if (before != kNone && SameStage(schedule_.placements[before], placement)) {
          leader = arrivals_.leader[before];
        } else if (!known.insert({d, placement.stage}).second) {
          Report({Rule::kStageSplit, placement.op, kNone, d, placement.stage});
        }
      } else if (problem_.concurrency.known() && !problem_.concurrency.has_threads(d)) {
        if (stream[d] != kNone && stream[d] != placement.stream) arrivals_.overlaps[d] = true;
        stream[d] = placement.stream;
      }
    }
    for (std::size_t d = 0; d < devices; ++d) {
      if (staged[d] && arrivals_.overlaps[d])
        Report({Rule::kStageStreams, kNone, kNone, static_cast<DeviceId>(d)});
    }
  }

  void CheckStage(const Placement& placement) {
    if (!problem_.concurrency.known())
      Report({Rule::kStageUnknown, placement.op, kNone, placement.device, placement.stage});
    if (placement.direct)
      Report({Rule::kStageDirect, placement.op, kNone, placement.device, placement.stage});
  }

  const Problem& problem_;
  const Schedule& schedule_;
  const std::size_t limit_;
  std::vector<Violation>& violations_;
  Arrivals arrivals_;
};

}  // namespace

const char* RuleName(Rule rule) {
  static constexpr const char* kNames[] = {
      "operator-missing", "operator-twice",     "operator-forbidden", "load-activation",
      "load-shared",      "copy-self",          "copy-route",         "copy-source",
      "tensor-twice",     "tensor-missing",     "host-read-missing",  "host-read-twice",
      "host-read-device", "host-read-spurious", "stage-unknown",      "stage-split",
      "stage-direct",     "stage-streams",      "deadlock",
  };
  return kNames[static_cast<std::int32_t>(rule)];
}

std::string Violation::ToString() const {
  std::ostringstream out;
  out << "rule " << RuleName(rule) << " is broken:";
  if (op != kNone) out << " operator " << op;
  if (tensor != kNone) out << " tensor " << tensor;
  if (device != kNone) out << " device " << device;
  if (!cycle.empty()) out << " events";
  for (EventId event : cycle) out << ' ' << event;
  return out.str();
}

void CheckIndices(const Problem& problem, const Schedule& schedule) {
  for (const Placement& placement : schedule.placements) {
    CheckIndex("operator", placement.op, problem.operators());
    CheckIndex("device", placement.device, problem.devices.size());
  }
  for (const Transfer& transfer : schedule.transfers) {
    CheckIndex("kind of transfer", static_cast<std::int32_t>(transfer.kind), 3);
    if (transfer.kind == TransferKind::kHostRead) {
      CheckIndex("operator", transfer.item, problem.operators());
    } else {
      CheckIndex("tensor", transfer.item, problem.tensors.size());
    }
    if (transfer.kind == TransferKind::kCopy)
      CheckIndex("device", transfer.source, problem.devices.size());
    CheckIndex("device", transfer.device, problem.devices.size());
  }
}

Arrivals FindArrivals(const Problem& problem, const Schedule& schedule, std::size_t limit,
                      std::vector<Violation>* violations) {
  return Checker(problem, schedule, limit, violations).Run();
}

}  // namespace tvm_sched::simulate
