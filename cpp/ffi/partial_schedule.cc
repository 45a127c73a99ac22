#include "ffi/partial_schedule.h"

#include <array>
#include <vector>

#include "ffi/arrays.h"
#include "ffi/events.h"
#include "ffi/records.h"
#include "runtime/throw.h"

namespace tvm_sched {
namespace {

namespace ffi = tvm::ffi;
using search::Event;
using simulate::kHost;
using simulate::kNever;
using simulate::kNone;

TVM_FFI_STATIC_INIT_BLOCK() {
  TVM_SCHED_RESULT(ExtensionObj, end_ns, moves);
  TVM_SCHED_METHODS(PartialScheduleObj, (append_run, AppendRun), (append_move, AppendMove),
                    (extension, FindExtension), (can_move, CanMove), (shortfall, Shortfall),
                    (at, At), (holders, Holders), (device_free, DeviceFree),
                    (channel_free, ChannelFree), (placed, Placed), (events, Events),
                    (starts, Starts), (ends, Ends), (latency_ns, LatencyNs), (fits, Fits),
                    (schedule, Schedule), (transits, Transits));
}

}  // namespace

PartialScheduleObj::PartialScheduleObj(const ProblemObj* problem, double memory_scale)
    : problem_(ffi::GetRef<ffi::ObjectRef>(problem)),
      state_(problem->EventInstance(), {memory_scale}) {}

std::int64_t PartialScheduleObj::AppendRun(std::int64_t op, std::int64_t device, bool direct) {
  const search::Instance& instance = state_.instance();
  const Event run = RunOf(instance, op, device, direct);
  TVM_SCHED_CHECK(state_.placed(run.item) == kNone, ValueError)
      << "operator " << op << " was appended before";
  TVM_SCHED_CHECK(instance.Duration(run.item, run.device, direct) != kNever, ValueError)
      << "operator " << op << " cannot run on device " << device;
  for (simulate::TensorId t : instance.problem.inputs[run.item]) {
    TVM_SCHED_CHECK(!state_.Reads(run, t) || state_.At(t, run.device) != kNever, ValueError)
        << "operator " << op << " reads tensor " << t << ", which is not on device " << device;
  }
  return state_.Append(run).count;
}

std::int64_t PartialScheduleObj::AppendMove(std::int64_t tensor, std::int64_t source,
                                            std::int64_t device) {
  const search::Instance& instance = state_.instance();
  const Event move = MoveOf(instance, tensor, source, device);
  TVM_SCHED_CHECK(instance.problem.RouteOf(move.source, move.device) != kNone, ValueError)
      << "nothing leads from device " << source << " to device " << device;
  TVM_SCHED_CHECK(move.source == kHost || state_.IsSource(move.item, move.source), ValueError)
      << "tensor " << tensor << " is not on device " << source;
  TVM_SCHED_CHECK(state_.At(move.item, move.device) == kNever, ValueError)
      << "tensor " << tensor << " is on device " << device << " already";
  return state_.Append(move).count;
}

ffi::Optional<ffi::Arc<ExtensionObj>> PartialScheduleObj::FindExtension(std::int64_t op,
                                                                        std::int64_t device,
                                                                        bool direct) {
  const Event run = RunOf(state_.instance(), op, device, direct);
  if (!state_.FindExtension(run.item, run.device, direct, &extension_)) return std::nullopt;
  const auto found = ffi::make_arc<ExtensionObj>();
  found->end_ns = extension_.end.count;
  found->moves = NewTable(extension_.moves, 3, [](const Event& move) {
    return std::array<std::int64_t, 3>{move.item, move.source, move.device};
  });
  return found;
}

bool PartialScheduleObj::CanMove(std::int64_t tensor, std::int64_t source,
                                 std::int64_t device) const {
  return state_.CanMove(MoveOf(state_.instance(), tensor, source, device));
}

std::int64_t PartialScheduleObj::Shortfall(std::int64_t op, std::int64_t device, bool direct) {
  const Event run = RunOf(state_.instance(), op, device, direct);
  search::Extension extension{{}, {}, run};
  for (simulate::TensorId t : state_.instance().problem.inputs[run.item]) {
    if (state_.Reads(run, t) && state_.At(t, run.device) == kNever)
      extension.moves.push_back(Event::Move(t, kHost, run.device));
  }
  return state_.Shortfall(extension);
}

std::int64_t PartialScheduleObj::At(std::int64_t tensor, std::int64_t device) const {
  const search::Instance& instance = state_.instance();
  const auto at = state_.At(IndexBelow("tensor", tensor, 0, instance.tensors()),
                            IndexBelow("device", device, 0, instance.devices()));
  return at == kNever ? -1 : at.count;
}

ffi::Tensor PartialScheduleObj::Holders(std::int64_t tensor) const {
  return NewRow<std::int64_t>(
      state_.Holders(IndexBelow("tensor", tensor, 0, state_.instance().tensors())));
}

ffi::Tensor PartialScheduleObj::DeviceFree() const {
  std::vector<simulate::Nanoseconds> free;
  for (std::size_t d = 0; d < state_.instance().devices(); ++d)
    free.push_back(state_.device_free(static_cast<std::int32_t>(d)));
  return NewRowOfCounts(free);
}

ffi::Tensor PartialScheduleObj::ChannelFree() const {
  std::vector<simulate::Nanoseconds> free;
  for (std::int32_t c = 0; c < state_.instance().problem.channels; ++c)
    free.push_back(state_.channel_free(c));
  return NewRowOfCounts(free);
}

ffi::Tensor PartialScheduleObj::Placed() const {
  std::vector<std::int64_t> placed;
  for (std::size_t o = 0; o < state_.instance().operators(); ++o)
    placed.push_back(state_.placed(static_cast<std::int32_t>(o)));
  return NewRow<std::int64_t>(placed);
}

ffi::Tensor PartialScheduleObj::Events() const { return TableOf(state_.events()); }
ffi::Tensor PartialScheduleObj::Starts() const { return NewRowOfCounts(state_.starts()); }
ffi::Tensor PartialScheduleObj::Ends() const { return NewRowOfCounts(state_.ends()); }

ffi::Arc<ScheduleObj> PartialScheduleObj::Schedule() const {
  return ffi::make_arc<ScheduleObj>(problem_.as<ProblemObj>(), state_.Schedule());
}

ffi::Tensor PartialScheduleObj::Transits(std::int64_t device) const {
  const search::Instance& instance = state_.instance();
  return NewRow<std::int64_t>(
      instance.transits[IndexBelow("device", device, 0, instance.devices())]);
}

}  // namespace tvm_sched
