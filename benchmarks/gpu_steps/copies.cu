// Measures how memory is pinned and copied between host and GPU: prints a JSON object a line, {"case", "gb_s" or "ms", ...}.
// copies FILE SECONDS: FILE has at least 1 GiB and lies in the page cache or on the disk.
#include <cuda_runtime.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <thread>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;
constexpr size_t kMiB = size_t{1} << 20;

double Seconds(Clock::time_point since) { return std::chrono::duration<double>(Clock::now() - since).count(); }

void Check(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  std::printf("{\"case\": \"error\", \"what\": \"%s\", \"error\": \"%s\"}\n", what, cudaGetErrorString(status));
  std::fflush(stdout);
  std::exit(1);
}

void Rate(const char* what, size_t bytes, int threads, double seconds) {
  std::printf("{\"case\": \"%s\", \"mib\": %zu, \"threads\": %d, \"ms\": %.4f, \"gb_s\": %.3f}\n", what, bytes / kMiB, threads,
              1e3 * seconds, bytes / seconds / 1e9);
  std::fflush(stdout);
}

double Best(int turns, const std::function<double()>& run) {
  double best = 1e30;
  for (int k = 0; k < turns; ++k) best = std::min(best, run());
  return best;
}

// Calls `each(begin, end)` with a part of `bytes` on each of the threads.
double Parallel(int threads, size_t bytes, const std::function<void(size_t, size_t)>& each) {
  auto since = Clock::now();
  std::vector<std::thread> pool;
  size_t part = (bytes / threads + 4095) / 4096 * 4096;
  for (int t = 0; t < threads; ++t) {
    size_t begin = std::min(bytes, t * part), end = std::min(bytes, begin + part);
    pool.emplace_back([=, &each] { each(begin, end); });
  }
  for (auto& thread : pool) thread.join();
  return Seconds(since);
}

char* Map(size_t bytes, bool huge) {
  void* found = mmap(nullptr, bytes + 2 * kMiB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (found == MAP_FAILED) std::exit(1);
  char* aligned = reinterpret_cast<char*>((reinterpret_cast<uintptr_t>(found) + 2 * kMiB - 1) & ~(2 * kMiB - 1));
  if (huge) madvise(aligned, bytes, MADV_HUGEPAGE);
  return aligned;
}

void Touch(char* memory, size_t begin, size_t end) {
  for (size_t k = begin; k < end; k += 4096) memory[k] = 1;
}

double Copy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
  auto since = Clock::now();
  Check(cudaMemcpyAsync(to, from, bytes, kind, stream), "cudaMemcpyAsync");
  Check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
  return Seconds(since);
}

// Each thread reads its part of `count` vectors once per turn; `stride` in vectors between neighbouring threads.
__global__ void Read(const float4* from, size_t count, int stride, int turns, float* sink) {
  float sum = 0;
  size_t threads = size_t{gridDim.x} * blockDim.x, me = size_t{blockIdx.x} * blockDim.x + threadIdx.x;
  for (int turn = 0; turn < turns; ++turn) {
    for (size_t k = me * stride; k < count; k += threads * stride) {
      float4 value = from[k];
      sum += value.x + value.y + value.z + value.w;
    }
  }
  if (sum == 1.25e30f) *sink = sum;
}

// Every block reads all of it, as tiles of a product do.
__global__ void ReadByAllBlocks(const float4* from, size_t count, float* sink) {
  float sum = 0;
  for (size_t k = threadIdx.x; k < count; k += blockDim.x) {
    float4 value = from[k];
    sum += value.x + value.y + value.z + value.w;
  }
  if (sum == 1.25e30f) *sink = sum;
}

void DirectReads(const char* pinned, cudaStream_t stream) {
  float4* mapped;
  float* sink;
  Check(cudaHostGetDevicePointer(reinterpret_cast<void**>(&mapped), const_cast<char*>(pinned), 0), "device pointer");
  Check(cudaMalloc(&sink, 4), "cudaMalloc");
  auto timed = [&](const char* name, size_t mib, double moved, int extra, auto launch) {
    cudaEvent_t begin, end;
    Check(cudaEventCreate(&begin), "event");
    Check(cudaEventCreate(&end), "event");
    float best = 1e30f;
    for (int turn = 0; turn < 4; ++turn) {
      Check(cudaEventRecord(begin, stream), "record");
      launch();
      Check(cudaEventRecord(end, stream), "record");
      Check(cudaEventSynchronize(end), "synchronize");
      float ms = 0;
      Check(cudaEventElapsedTime(&ms, begin, end), "elapsed");
      best = std::min(best, ms);
    }
    std::printf("{\"case\": \"direct: %s\", \"mib\": %zu, \"parameter\": %d, \"ms\": %.4f, \"gb_s\": %.3f}\n", name, mib, extra, best,
                moved / best / 1e6);
    std::fflush(stdout);
  };
  for (size_t mib : {1, 16, 256}) {
    size_t count = mib * kMiB / 16;
    for (int blocks : {1, 16, 132, 1056}) {
      timed("coalesced by blocks", mib, mib * kMiB, blocks, [&] { Read<<<blocks, 256, 0, stream>>>(mapped, count, 1, 1, sink); });
    }
  }
  for (int stride : {2, 4, 8, 16}) {  // of 16-byte vectors: useful bytes are counted
    timed("strided vectors", 256, 256.0 * kMiB / stride, stride,
          [&] { Read<<<1056, 256, 0, stream>>>(mapped, 256 * kMiB / 16, stride, 1, sink); });
  }
  for (size_t mib : {4, 16, 64}) {
    for (int turns : {1, 2, 4}) {
      timed("read again by the same threads", mib, double(mib * kMiB), turns,
            [&] { Read<<<1056, 256, 0, stream>>>(mapped, mib * kMiB / 16, 1, turns, sink); });
    }
    for (int blocks : {1, 4, 16, 64}) {
      timed("read whole by each block", mib, double(mib * kMiB), blocks,
            [&] { ReadByAllBlocks<<<blocks, 1024, 0, stream>>>(mapped, mib * kMiB / 16, sink); });
    }
  }
}

}  // namespace

int main(int count, char** values) {
  if (count < 3) return 2;
  const char* file = values[1];
  auto begun = Clock::now();
  double limit = std::atof(values[2]);
  auto late = [&] { return Seconds(begun) > limit; };
  auto since = Clock::now();
  Check(cudaFree(nullptr), "context");
  std::printf("{\"case\": \"context\", \"ms\": %.2f}\n", 1e3 * Seconds(since));
  const size_t big = 1024 * kMiB;
  cudaStream_t stream, other;
  Check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
  Check(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking), "stream");
  char *device, *second;
  since = Clock::now();
  Check(cudaMalloc(&device, big), "cudaMalloc");
  Rate("cudaMalloc", big, 1, Seconds(since));
  Check(cudaMalloc(&second, big), "cudaMalloc");

  // Pinning.
  for (size_t mib : {16, 128, 1024}) {
    void* pinned;
    since = Clock::now();
    Check(cudaHostAlloc(&pinned, mib * kMiB, cudaHostAllocPortable | cudaHostAllocMapped), "cudaHostAlloc");
    Rate("pin: cudaHostAlloc", mib * kMiB, 1, Seconds(since));
    Check(cudaFreeHost(pinned), "cudaFreeHost");
  }
  for (bool huge : {false, true}) {
    for (int threads : {1, 4, 8, 16}) {
      if (late()) return 0;
      char* memory = Map(big, huge);
      double touched = Parallel(threads, big, [&](size_t b, size_t e) { Touch(memory, b, e); });
      since = Clock::now();
      Check(cudaHostRegister(memory, big, cudaHostRegisterPortable | cudaHostRegisterMapped), "cudaHostRegister");
      double registered = Seconds(since);
      Rate(huge ? "pin: map huge, touch" : "pin: map, touch", big, threads, touched);
      Rate(huge ? "pin: map huge, touch, register" : "pin: map, touch, register", big, threads, touched + registered);
      Check(cudaHostUnregister(memory), "cudaHostUnregister");
      munmap(memory, big);
    }
  }

  // Copies of pinned memory by size.
  char* pinned = Map(big, true);
  Parallel(16, big, [&](size_t b, size_t e) { Touch(pinned, b, e); });
  Check(cudaHostRegister(pinned, big, cudaHostRegisterPortable | cudaHostRegisterMapped), "cudaHostRegister");
  for (size_t kib : {4, 64, 256, 1024, 4096, 16384, 65536, 262144, 1048576}) {
    size_t bytes = kib * 1024;
    int turns = bytes > 64 * kMiB ? 5 : 30;
    auto one = [&](const char* name, void* to, void* from, cudaMemcpyKind kind) {
      double best = Best(turns, [&] { return Copy(to, from, bytes, kind, stream); });
      std::printf("{\"case\": \"%s\", \"kib\": %zu, \"us\": %.2f, \"gb_s\": %.3f}\n", name, kib, 1e6 * best, bytes / best / 1e9);
    };
    one("copy: host to device, pinned", device, pinned, cudaMemcpyHostToDevice);
    one("copy: device to host, pinned", pinned, device, cudaMemcpyDeviceToHost);
    one("copy: device to device", second, device, cudaMemcpyDeviceToDevice);
  }
  double both = Best(5, [&] {
    auto start = Clock::now();
    Check(cudaMemcpyAsync(device, pinned, big / 2, cudaMemcpyHostToDevice, stream), "copy");
    Check(cudaMemcpyAsync(pinned + big / 2, second, big / 2, cudaMemcpyDeviceToHost, other), "copy");
    Check(cudaStreamSynchronize(stream), "synchronize");
    Check(cudaStreamSynchronize(other), "synchronize");
    return Seconds(start);
  });
  Rate("copy: both directions at once, sum", big, 1, both);
  DirectReads(pinned, stream);
  char* pageable = Map(big, true);
  Parallel(16, big, [&](size_t b, size_t e) { Touch(pageable, b, e); });
  Rate("copy: host to device, pageable", big, 1,
       Best(2, [&] { return Copy(device, pageable, big, cudaMemcpyHostToDevice, stream); }));
  for (int threads : {1, 2, 4, 8, 16}) {
    if (late()) return 0;
    double best = Best(3, [&] {
      return Parallel(threads, big, [&](size_t b, size_t e) { std::memcpy(pinned + b, pageable + b, e - b); });
    });
    Rate("memcpy to pinned", big, threads, best);
  }

  // The file: read into pinned memory by threads, mapped and registered, copied from the mapping.
  int opened = open(file, O_RDONLY);
  if (opened < 0) return 3;
  auto read_all = [&](int threads) {
    return Parallel(threads, big, [&](size_t b, size_t e) {
      while (b < e) {
        ssize_t got = pread(opened, pinned + b, std::min(e - b, 8 * kMiB), static_cast<off_t>(b));
        if (got <= 0) std::exit(4);
        b += got;
      }
    });
  };
  read_all(16);
  for (int threads : {1, 2, 4, 8, 16}) Rate("pread of cached pages to pinned", big, threads, Best(2, [&] { return read_all(threads); }));
  if (late()) return 0;
  for (bool populate : {false, true}) {
    since = Clock::now();
    void* mapping = mmap(nullptr, big, PROT_READ, MAP_SHARED | (populate ? MAP_POPULATE : 0), opened, 0);
    double mapped = Seconds(since);
    cudaError_t status = cudaHostRegister(mapping, big, cudaHostRegisterReadOnly | cudaHostRegisterPortable);
    double registered = Seconds(since);
    const char* name = populate ? "pin: file mapping populated, register read-only" : "pin: file mapping, register read-only";
    if (status != cudaSuccess) {
      std::printf("{\"case\": \"%s\", \"error\": \"%s\"}\n", name, cudaGetErrorString(status));
      cudaGetLastError();
    } else {
      Rate(name, big, 1, registered);
      std::printf("{\"case\": \"%s: mmap alone\", \"ms\": %.3f}\n", name, 1e3 * mapped);
      Rate("copy: host to device, registered file mapping", big, 1,
           Best(3, [&] { return Copy(device, mapping, big, cudaMemcpyHostToDevice, stream); }));
      since = Clock::now();
      Check(cudaHostUnregister(mapping), "cudaHostUnregister");
      Rate("unregister file mapping", big, 1, Seconds(since));
    }
    munmap(mapping, big);
  }
  // Chunks: threads read the next chunk while the last one is copied.
  for (int threads : {4, 8, 16}) {
    if (late()) return 0;
    double best = Best(3, [&] {
      auto start = Clock::now();
      const size_t chunk = 64 * kMiB;
      for (size_t at = 0; at < big; at += chunk) {
        Parallel(threads, chunk, [&](size_t b, size_t e) {
          while (b < e) {
            ssize_t got = pread(opened, pinned + at + b, std::min(e - b, 4 * kMiB), static_cast<off_t>(at + b));
            if (got <= 0) std::exit(4);
            b += got;
          }
        });
        Check(cudaMemcpyAsync(device + at, pinned + at, chunk, cudaMemcpyHostToDevice, stream), "copy");
      }
      Check(cudaStreamSynchronize(stream), "synchronize");
      return Seconds(start);
    });
    Rate("pread of cached pages in chunks of 64 MiB, copied meanwhile", big, threads, best);
  }
  for (int threads : {1, 4, 16}) {
    if (late()) return 0;
    int caches = open("/proc/sys/vm/drop_caches", O_WRONLY);
    if (caches < 0 || write(caches, "1", 1) != 1) break;
    close(caches);
    posix_fadvise(opened, 0, big, POSIX_FADV_DONTNEED);
    Rate("pread from disk to pinned", big, threads, read_all(threads));
  }
  return 0;
}
