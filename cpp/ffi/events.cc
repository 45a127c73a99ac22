#include "ffi/events.h"

#include <array>

#include "runtime/throw.h"

namespace tvm_sched {

namespace ffi = tvm::ffi;

using search::Event;
using search::Sequence;

std::int32_t IndexBelow(const char* what, std::int64_t index, std::int64_t least,
                        std::size_t limit) {
  TVM_SCHED_CHECK(index >= least && index < static_cast<std::int64_t>(limit), IndexError)
      << what << " " << index << " is not one of the " << limit << " of the problem";
  return static_cast<std::int32_t>(index);
}

Event RunOf(const search::Instance& instance, std::int64_t op, std::int64_t device, bool direct) {
  return Event::Run(IndexBelow("operator", op, 0, instance.operators()),
                    IndexBelow("device", device, 0, instance.devices()), direct);
}

Event MoveOf(const search::Instance& instance, std::int64_t tensor, std::int64_t source,
             std::int64_t device) {
  return Event::Move(IndexBelow("tensor", tensor, 0, instance.tensors()),
                     IndexBelow("source", source, simulate::kHost, instance.devices()),
                     IndexBelow("device", device, 0, instance.devices()));
}

Sequence SequenceOf(const search::Instance& instance, const Integers& table) {
  constexpr std::size_t kColumns = 4;
  const std::span<std::int64_t> elements = Elements("sequence", table);
  TVM_SCHED_CHECK(elements.size() % kColumns == 0, ValueError)
      << "a sequence has columns kind, item, source, device";
  Sequence sequence;
  for (std::size_t i = 0; i < elements.size(); i += kColumns) {
    const auto kind = static_cast<Event::Kind>(elements[i]);
    const std::int64_t item = elements[i + 1], source = elements[i + 2], device = elements[i + 3];
    sequence.push_back(kind == Event::Kind::kMove
                           ? MoveOf(instance, item, source, device)
                           : RunOf(instance, item, device, kind == Event::Kind::kDirect));
  }
  return sequence;
}

ffi::Tensor TableOf(const Sequence& sequence) {
  return NewTable(sequence, 4, [](const Event& event) {
    return std::array<std::int64_t, 4>{static_cast<std::int64_t>(event.kind), event.item,
                                       event.source, event.device};
  });
}

}  // namespace tvm_sched
