// What stands for the GPU where CUDA source is compiled by a compiler for the host: included before
// the source. Threads are fibers (execution/fibers.h); what they wait for is asked of the driver.
#ifndef TVM_SCHED_TESTS_CUDA_EMULATOR_DEVICE_H_
#define TVM_SCHED_TESTS_CUDA_EMULATOR_DEVICE_H_

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <type_traits>
#include <utility>

#include "cuda_emulator/image.h"

#undef __host__
#undef __device__
#undef __global__
#undef __constant__
#undef __launch_bounds__
#undef __forceinline__
#undef __noinline__
#undef __grid_constant__
#define __host__
#define __device__
#define __global__
#define __constant__
#define __launch_bounds__(...)
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))
#define __grid_constant__

extern "C" __attribute__((visibility("default"))) cuda_emulator::Image cuda_emulator_image;

namespace cuda_emulator {

__attribute__((always_inline)) inline const Position& Here() {
  const auto frame = reinterpret_cast<std::uintptr_t>(__builtin_frame_address(0));
  return *reinterpret_cast<const Position*>(frame & ~(kStackBytes - 1));
}
inline const Device& TheDevice() { return *cuda_emulator_image.device; }

/// A file's kernel as the driver calls it: arguments by their addresses.
template <auto kKernel>
struct Entry;
template <class... P, void (*kKernel)(P...)>
struct Entry<kKernel> {
  template <std::size_t... I>
  static void CallWith(void** arguments, std::index_sequence<I...>) {
    kKernel(*static_cast<std::remove_cv_t<P>*>(arguments[I])...);
  }
  static void Call(void** arguments) { CallWith(arguments, std::index_sequence_for<P...>()); }
  static constexpr Parameter kParameters[] = {{unsigned(sizeof(P)), std::is_pointer_v<P>}..., {}};
  static constexpr unsigned kCount = sizeof...(P);
};

template <class T>
struct Moved {
  T value;
  int from;  // lane that this lane reads
};

template <class T>
void MoveBetweenLanes(void** lanes) {
  T before[kLanes];
  for (unsigned i = 0; i < kLanes; ++i) {
    if (lanes[i]) std::memcpy(&before[i], &static_cast<Moved<T>*>(lanes[i])->value, sizeof(T));
  }
  for (unsigned i = 0; i < kLanes; ++i) {
    if (!lanes[i]) continue;
    auto* moved = static_cast<Moved<T>*>(lanes[i]);
    if (lanes[moved->from]) {
      std::memcpy(&moved->value, &before[moved->from], sizeof(T));
    } else {
      std::memset(&moved->value, 0xFF, sizeof(T));  // undefined: NaN
    }
  }
}

/// `from` as the intrinsics compute it within segments of `width` lanes.
template <class T>
T Move(int line, unsigned mask, T value, int from) {
  Moved<T> moved{value, from};
  TheDevice().exchange(line, mask, MoveBetweenLanes<T>, &moved);
  return moved.value;
}

inline int Segment(int width) { return static_cast<int>(Here().lane) & ~(width - 1); }

template <class T>
T Shuffle(int line, unsigned mask, T value, int lane, int width = 32) {
  return Move(line, mask, value, Segment(width) + (lane & (width - 1)));
}
template <class T>
T ShuffleDown(int line, unsigned mask, T value, unsigned delta, int width = 32) {
  const int mine = static_cast<int>(Here().lane), from = mine + static_cast<int>(delta);
  return Move(line, mask, value, from < Segment(width) + width ? from : mine);
}
template <class T>
T ShuffleUp(int line, unsigned mask, T value, unsigned delta, int width = 32) {
  const int mine = static_cast<int>(Here().lane), from = mine - static_cast<int>(delta);
  return Move(line, mask, value, from >= Segment(width) ? from : mine);
}
template <class T>
T ShuffleXor(int line, unsigned mask, T value, int other, int width = 32) {
  const int mine = static_cast<int>(Here().lane), from = mine ^ other;
  return Move(line, mask, value, from < Segment(width) + width ? from : mine);
}

struct Vote {
  bool predicate;
  unsigned ballot;
};
inline void CountVotes(void** lanes) {
  unsigned ballot = 0;
  for (unsigned i = 0; i < kLanes; ++i) {
    if (lanes[i] && static_cast<Vote*>(lanes[i])->predicate) ballot |= 1u << i;
  }
  for (unsigned i = 0; i < kLanes; ++i) {
    if (lanes[i]) static_cast<Vote*>(lanes[i])->ballot = ballot;
  }
}
inline unsigned Ballot(int line, unsigned mask, bool predicate) {
  Vote vote{predicate, 0};
  TheDevice().exchange(line, mask, CountVotes, &vote);
  return vote.ballot;
}
inline void Meet(void**) {}

/// A shared variable: cuda_source.py writes its declaration as a reference to memory of the block.
template <class T>
struct SharedArray {
  using Type = T;
  static T& Of(int array, std::size_t alignment = alignof(T)) {
    return *reinterpret_cast<T*>(TheDevice().shared(array, sizeof(T), alignment));
  }
};

}  // namespace cuda_emulator

#define threadIdx (cuda_emulator::Here().thread)
#define blockIdx (cuda_emulator::Here().block)
#define blockDim (cuda_emulator::Here().block_extent)
#define gridDim (cuda_emulator::Here().grid_extent)
#define warpSize 32

#define __syncthreads() cuda_emulator::TheDevice().barrier(__LINE__)
#define __syncwarp(...)                                                             \
  [&](int line, unsigned mask = ~0u) {                                              \
    int nothing = 0;                                                                \
    cuda_emulator::TheDevice().exchange(line, mask, cuda_emulator::Meet, &nothing); \
  }(__LINE__ __VA_OPT__(, ) __VA_ARGS__)
#define __activemask() cuda_emulator::TheDevice().active(__LINE__)
#define __shfl_sync(...) cuda_emulator::Shuffle(__LINE__, __VA_ARGS__)
#define __shfl_down_sync(...) cuda_emulator::ShuffleDown(__LINE__, __VA_ARGS__)
#define __shfl_up_sync(...) cuda_emulator::ShuffleUp(__LINE__, __VA_ARGS__)
#define __shfl_xor_sync(...) cuda_emulator::ShuffleXor(__LINE__, __VA_ARGS__)
#define __ballot_sync(mask, predicate) cuda_emulator::Ballot(__LINE__, mask, predicate)
#define __any_sync(mask, predicate) (cuda_emulator::Ballot(__LINE__, mask, predicate) != 0)
#define __all_sync(mask, predicate) (cuda_emulator::Ballot(__LINE__, mask, !(predicate)) == 0)

#define CUDA_EMULATOR_KERNEL(name, bound)                                                     \
  {#name, cuda_emulator::Entry<&name>::Call, bound, cuda_emulator::Entry<&name>::kParameters, \
   cuda_emulator::Entry<&name>::kCount}

#include "cuda_emulator/arithmetic.h"
#include "cuda_emulator/checks.h"
#include "cuda_emulator/ptx.h"

#endif  // TVM_SCHED_TESTS_CUDA_EMULATOR_DEVICE_H_
