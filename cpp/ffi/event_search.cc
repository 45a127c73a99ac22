// The searches over sequences of events of a problem.
#include <utility>
#include <vector>

#include "arrays.h"
#include "events.h"
#include "problem.h"

namespace tvm_sched {

namespace ffi = tvm::ffi;

using search::Event;
using search::Sequence;

int32_t IndexBelow(const char* what, int64_t index, int64_t least, size_t limit) {
  TVM_FFI_CHECK(index >= least && index < static_cast<int64_t>(limit), IndexError)
      << what << " " << index << " is not one of the " << limit << " of the problem";
  return static_cast<int32_t>(index);
}

Event EventOf(const search::Instance& instance, int64_t kind, int64_t item, int64_t source,
              int64_t device) {
  const int32_t on = IndexBelow("device", device, 0, instance.devices());
  if (kind != static_cast<int64_t>(Event::Kind::kMove)) {
    return Event::Run(IndexBelow("operator", item, 0, instance.operators()), on,
                      kind == static_cast<int64_t>(Event::Kind::kDirect));
  }
  return Event::Move(IndexBelow("tensor", item, 0, instance.tensors()),
                     IndexBelow("source", source, simulate::kHost, instance.devices()), on);
}

ffi::Tensor TableOf(const Sequence& sequence) {
  ffi::Tensor table = NewTensor({static_cast<int64_t>(sequence.size()), 4});
  auto* row = static_cast<int64_t*>(table.data_ptr());
  for (const Event& event : sequence) {
    for (int64_t value : {static_cast<int64_t>(event.kind), int64_t{event.item},
                          int64_t{event.source}, int64_t{event.device}})
      *row++ = value;
  }
  return table;
}

Sequence SequenceOf(const search::Instance& instance, const ffi::TensorView& rows) {
  const std::span<int64_t> elements = Elements("sequence", rows);
  TVM_FFI_CHECK(elements.size() % 4 == 0, ValueError)
      << "a sequence has rows of kind, item, source, device";
  Sequence sequence;
  for (size_t i = 0; i < elements.size(); i += 4) {
    sequence.push_back(
        EventOf(instance, elements[i], elements[i + 1], elements[i + 2], elements[i + 3]));
  }
  return sequence;
}

namespace {

/*! \brief Rows of direct (0 or 1), then 0 or 1 for each device. */
std::vector<search::Choice> ChoicesOf(const search::Instance& instance,
                                      const ffi::TensorView& rows) {
  const size_t width = instance.devices() + 1;
  const std::span<int64_t> elements = Elements("choices", rows);
  TVM_FFI_CHECK(elements.size() % width == 0, ValueError) << "choices has rows of " << width;
  std::vector<search::Choice> choices;
  for (size_t i = 0; i < elements.size(); i += width) {
    search::Choice choice{{}, elements[i] != 0};
    for (size_t d = 1; d < width; ++d) choice.device.push_back(elements[i + d] != 0);
    choices.push_back(std::move(choice));
  }
  return choices;
}

}  // namespace

ffi::Array<ffi::Any> ProblemObj::Construct(TensorView choices, TensorView choice,
                                           double memory_scale) const {
  const search::Instance& instance = EventInstance();
  const std::vector<search::Choice> table = ChoicesOf(instance, choices);
  std::vector<int32_t> chosen;
  for (int64_t c : Elements("choice", choice, instance.operators())) {
    chosen.push_back(IndexBelow("choice", c, 0, table.size()));
  }
  const search::Constructed made = search::Construct(instance, table, chosen, memory_scale);
  return {TableOf(made.events), made.latency.count};
}

LocalSearchObj::LocalSearchObj(const ProblemObj* problem, ffi::TensorView start,
                               double memory_scale, int64_t seed, int64_t goal,
                               ffi::Array<ffi::Any> others)
    : problem_(ffi::GetRef<ffi::ObjectRef>(problem)), others_(std::move(others)) {
  std::vector<search::WeightedRun> runs = {{&problem->EventInstance(), 1.0}};
  TVM_FFI_CHECK(others_.size() % 2 == 0, ValueError) << "others holds problems and their shares";
  for (size_t i = 0; i < others_.size(); i += 2) {
    const auto* other = others_[static_cast<int64_t>(i)].cast<const ProblemObj*>();
    const search::Instance& instance = other->EventInstance();
    TVM_FFI_CHECK(instance.operators() == runs[0].instance->operators() &&
                      instance.tensors() == runs[0].instance->tensors() &&
                      instance.devices() == runs[0].instance->devices(),
                  ValueError)
        << "the runs of a search are of one graph on one machine";
    runs.push_back({&instance, others_[static_cast<int64_t>(i + 1)].cast<double>()});
    runs[0].share -= runs.back().share;
  }
  search_ = std::make_unique<search::LocalSearch>(
      runs, memory_scale, SequenceOf(problem->EventInstance(), start), static_cast<uint64_t>(seed),
      simulate::Nanoseconds{goal});
}

ffi::Tensor LocalSearchObj::Best() const { return TableOf(search_->best()); }

}  // namespace tvm_sched
