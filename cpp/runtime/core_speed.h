// How fast one core of this processor computes and moves data, measured.
#ifndef TVM_SCHED_RUNTIME_CORE_SPEED_H_
#define TVM_SCHED_RUNTIME_CORE_SPEED_H_

namespace tvm_sched::runtime {

struct CoreSpeed {
  double flops;      // float32 operations a second; 0 if the instructions are unknown
  double bandwidth;  // bytes a second, read and written, of arrays of some MiB; 0 without memory
};

/// Measure for some 60 ms. The fastest of many short pieces counts. Other work on the machine still
/// lowers the result, by up to a third, so callers take the best of several measurements.
CoreSpeed MeasureCoreSpeed();

}  // namespace tvm_sched::runtime

#endif  // TVM_SCHED_RUNTIME_CORE_SPEED_H_
