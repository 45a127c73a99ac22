#include "partial_schedule.h"

#include <vector>

#include "arrays.h"
#include "events.h"
#include "schedule.h"

namespace tvm_sched {
namespace {

namespace ffi = tvm::ffi;
using search::Event;
using simulate::kHost;
using simulate::kNever;
using simulate::kNone;

/*! \brief A row of the counts of quantities. */
template <typename Quantities>
ffi::Tensor CountsOf(const Quantities& quantities) {
  std::vector<int64_t> counts;
  for (const auto& quantity : quantities) counts.push_back(quantity.count);
  return NewRow<int64_t>(counts);
}

TVM_FFI_STATIC_INIT_BLOCK() {
  ffi::reflection::ObjectDef<PartialScheduleObj>(ffi::reflection::init(false))
      .def("append", &PartialScheduleObj::Append)
      .def("extension", &PartialScheduleObj::FindExtension)
      .def("can_move", &PartialScheduleObj::CanMove)
      .def("shortfall", &PartialScheduleObj::Shortfall)
      .def("at", &PartialScheduleObj::At)
      .def("holders", &PartialScheduleObj::Holders)
      .def("device_free", &PartialScheduleObj::DeviceFree)
      .def("channel_free", &PartialScheduleObj::ChannelFree)
      .def("placed", &PartialScheduleObj::Placed)
      .def("events", &PartialScheduleObj::Events)
      .def("starts", &PartialScheduleObj::Starts)
      .def("ends", &PartialScheduleObj::Ends)
      .def("latency_ns", &PartialScheduleObj::LatencyNs)
      .def("fits", &PartialScheduleObj::Fits)
      .def("schedule", &PartialScheduleObj::Schedule)
      .def("transits", &PartialScheduleObj::Transits);
}

}  // namespace

PartialScheduleObj::PartialScheduleObj(const ProblemObj* problem, double memory_scale)
    : problem_(ffi::GetRef<ffi::ObjectRef>(problem)),
      state_(problem->EventInstance(), {memory_scale}) {}

int64_t PartialScheduleObj::Append(int64_t kind, int64_t item, int64_t source, int64_t device) {
  const search::Instance& instance = state_.instance();
  const Event event = EventOf(instance, kind, item, source, device);
  if (!event.is_run()) {
    TVM_FFI_CHECK(instance.problem.RouteOf(event.source, event.device) != kNone, ValueError)
        << "nothing leads from device " << source << " to device " << device;
    TVM_FFI_CHECK(event.source == kHost || state_.IsSource(event.item, event.source), ValueError)
        << "tensor " << item << " is not on device " << source;
    TVM_FFI_CHECK(state_.At(event.item, event.device) == kNever, ValueError)
        << "tensor " << item << " is on device " << device << " already";
    return state_.Append(event).count;
  }
  TVM_FFI_CHECK(state_.placed(event.item) == kNone, ValueError)
      << "operator " << item << " was appended before";
  TVM_FFI_CHECK(instance.Duration(event.item, event.device, event.is_direct()) != kNever,
                ValueError)
      << "operator " << item << " cannot run on device " << device;
  for (simulate::TensorId t : instance.problem.inputs[event.item]) {
    TVM_FFI_CHECK(!state_.Reads(event, t) || state_.At(t, event.device) != kNever, ValueError)
        << "operator " << item << " reads tensor " << t << ", which is not on device " << device;
  }
  return state_.Append(event).count;
}

ffi::Tensor PartialScheduleObj::FindExtension(int64_t op, int64_t device, bool direct) {
  const Event run = EventOf(state_.instance(), direct ? 1 : 0, op, kHost, device);
  std::vector<int64_t> row;
  if (state_.FindExtension(run.item, run.device, direct, &extension_)) {
    row.push_back(extension_.end.count);
    for (const Event& move : extension_.moves) {
      row.insert(row.end(), {move.item, move.source, move.device});
    }
  }
  return NewRow<int64_t>(row);
}

bool PartialScheduleObj::CanMove(int64_t tensor, int64_t source, int64_t device) const {
  return state_.CanMove(
      EventOf(state_.instance(), static_cast<int64_t>(Event::Kind::kMove), tensor, source, device));
}

int64_t PartialScheduleObj::Shortfall(int64_t op, int64_t device, bool direct) {
  const Event run = EventOf(state_.instance(), direct ? 1 : 0, op, kHost, device);
  search::Extension extension{{}, {}, run};
  for (simulate::TensorId t : state_.instance().problem.inputs[run.item]) {
    if (state_.Reads(run, t) && state_.At(t, run.device) == kNever)
      extension.moves.push_back(Event::Move(t, kHost, run.device));
  }
  return state_.Shortfall(extension);
}

int64_t PartialScheduleObj::At(int64_t tensor, int64_t device) const {
  const search::Instance& instance = state_.instance();
  const auto at = state_.At(IndexBelow("tensor", tensor, 0, instance.tensors()),
                            IndexBelow("device", device, 0, instance.devices()));
  return at == kNever ? -1 : at.count;
}

ffi::Tensor PartialScheduleObj::Holders(int64_t tensor) const {
  return NewRow<int64_t>(
      state_.Holders(IndexBelow("tensor", tensor, 0, state_.instance().tensors())));
}

ffi::Tensor PartialScheduleObj::DeviceFree() const {
  std::vector<simulate::Nanoseconds> free;
  for (size_t d = 0; d < state_.instance().devices(); ++d)
    free.push_back(state_.device_free(static_cast<int32_t>(d)));
  return CountsOf(free);
}

ffi::Tensor PartialScheduleObj::ChannelFree() const {
  std::vector<simulate::Nanoseconds> free;
  for (int32_t c = 0; c < state_.instance().problem.channels; ++c)
    free.push_back(state_.channel_free(c));
  return CountsOf(free);
}

ffi::Tensor PartialScheduleObj::Placed() const {
  std::vector<int64_t> placed;
  for (size_t o = 0; o < state_.instance().operators(); ++o)
    placed.push_back(state_.placed(static_cast<int32_t>(o)));
  return NewRow<int64_t>(placed);
}

ffi::Tensor PartialScheduleObj::Events() const { return TableOf(state_.events()); }
ffi::Tensor PartialScheduleObj::Starts() const { return CountsOf(state_.starts()); }
ffi::Tensor PartialScheduleObj::Ends() const { return CountsOf(state_.ends()); }

ffi::ObjectRef PartialScheduleObj::Schedule() const {
  return ffi::ObjectRef(
      ffi::make_object<ScheduleObj>(problem_.as<ProblemObj>(), state_.Schedule()));
}

ffi::Tensor PartialScheduleObj::Transits(int64_t device) const {
  const search::Instance& instance = state_.instance();
  return NewRow<int64_t>(instance.transits[IndexBelow("device", device, 0, instance.devices())]);
}

}  // namespace tvm_sched
