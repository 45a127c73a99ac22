// What the driver of the emulator and the host code of compiled kernels know of each other.
#ifndef TVM_SCHED_TESTS_CUDA_EMULATOR_IMAGE_H_
#define TVM_SCHED_TESTS_CUDA_EMULATOR_IMAGE_H_

#include <cstddef>
#include <cstdint>

namespace cuda_emulator {

/// Each CUDA thread has a stack of this size, at a multiple of it.
inline constexpr std::uintptr_t kStackBytes = 256 << 10;
inline constexpr unsigned kLanes = 32;

struct Index {
  unsigned x = 1, y = 1, z = 1;
};

/// Where a thread stands in its launch; lies at the lowest address of its stack.
struct Position {
  Index thread, block, block_extent, grid_extent;
  unsigned lane = 0;
};

/// What the lanes of a warp exchange: `lanes[i]` is what lane i has given, null where lane i takes
/// no part. Runs once, when all are there.
using Exchange = void (*)(void** lanes);

/// What a kernel asks of the driver while it runs. Those that wait return when the others came.
struct Device {
  void (*barrier)(int line);
  void (*exchange)(int line, unsigned mask, Exchange exchange, void* given);
  unsigned (*active)(int line);
  void* (*shared)(int array, std::size_t bytes, std::size_t alignment);
  void* (*dynamic_shared)();
  /// Where 32 bits of an address of shared memory lead to.
  void* (*shared_at)(unsigned address, unsigned bytes);
  /// cp.async: a copy happens when its thread waits for its group, `wait` for all but `newest`.
  void (*copy)(void* to, const void* from, unsigned bytes, unsigned zeros);
  void (*commit)();
  void (*wait)(unsigned newest);
  /// Ends the launch; `code` is what the driver's functions return from now on.
  [[noreturn]] void (*fault)(int code, const char* text);
};

struct Parameter {
  unsigned bytes;
  bool pointer;
};

struct Kernel {
  const char* name;
  void (*call)(void** arguments);
  unsigned largest_block;  // by __launch_bounds__, 0 without
  const Parameter* parameters;
  unsigned count;
};

/// What the file of compiled kernels exports as `cuda_emulator_image`.
struct Image {
  const Device* device;  // set by the driver
  const Kernel* kernels;
  unsigned count;
};

/// A fat binary begins so, as NVIDIA's do: `payload` bytes follow, which are "EMULATED", the length
/// of a list of targets ("sm_90 compute_90"), this list, and a shared library.
struct ImageHeader {
  std::uint32_t magic = 0xBA55ED50;
  std::uint16_t version = 1;
  std::uint16_t bytes = 16;
  std::uint64_t payload = 0;
};

inline constexpr int kIllegalAddress = 700, kMisaligned = 716, kLaunchFailed = 719;

}  // namespace cuda_emulator

#endif  // TVM_SCHED_TESTS_CUDA_EMULATOR_IMAGE_H_
