#include "runtime/cuda/staged_copy.h"

#include <algorithm>

namespace tvm_sched::runtime::cuda {

StagedCopy::StagedCopy(const Devices& devices, int from, int to)
    : devices_(devices), from_(from), to_(to) {
  devices_.Enter(from_);
  sender_ = MakeStream(0);
  for (Slot& slot : slots_) {
    slot.memory = devices_.AllocateHost(kChunk, from_);
    devices_.Enter(from_);
    slot.filled = MakeEvent(kEventDisableTiming);
    devices_.Enter(to_);
    slot.drained = MakeEvent(kEventDisableTiming);
  }
  begun_ = MakeEvent(kEventDisableTiming);
}

void StagedCopy::Issue(DevicePointer to, DevicePointer from, Bytes size, Stream receiver) {
  const DriverApi& driver = Driver();
  // The first chunks also wait for the copy before this one, which is in the receiver's order.
  Check(driver.EventRecord(begun_.get(), receiver), "a staged copy cannot begin");
  Check(driver.StreamWaitEvent(sender_.get(), begun_.get(), 0), "a staged copy cannot begin");
  for (Slot& slot : slots_) slot.used = false;
  int turn = 0;
  for (std::int64_t done = 0; done < size.count; done += kChunk.count, turn ^= 1) {
    Slot& slot = slots_[turn];
    const auto part = static_cast<std::size_t>(std::min(kChunk.count, size.count - done));
    const auto memory = reinterpret_cast<DevicePointer>(slot.memory.get());
    const auto offset = static_cast<DevicePointer>(done);
    if (slot.used) {
      Check(driver.StreamWaitEvent(sender_.get(), slot.drained.get(), 0), "a staged copy failed");
    }
    slot.used = true;
    devices_.Enter(from_);
    Check(driver.CopyAsync(memory, from + offset, part, sender_.get()),
          "a copy to the host for a staged copy failed");
    Check(driver.EventRecord(slot.filled.get(), sender_.get()), "a staged copy failed");
    devices_.Enter(to_);
    Check(driver.StreamWaitEvent(receiver, slot.filled.get(), 0), "a staged copy failed");
    Check(driver.CopyAsync(to + offset, memory, part, receiver),
          "a copy from the host for a staged copy failed");
    Check(driver.EventRecord(slot.drained.get(), receiver), "a staged copy failed");
  }
}

}  // namespace tvm_sched::runtime::cuda
