#include "runtime/checksum.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include "runtime/cores.h"
#ifdef __x86_64__
#include <nmmintrin.h>
#endif

namespace tvm_sched::runtime {

namespace {

constexpr std::int64_t kPiece = 64 << 10;
/// Pieces that one thread reads at once: an instruction has a latency of three cycles, in which
/// others can begin.
constexpr int kLanes = 4;

using Tables = std::array<std::array<std::uint32_t, 256>, 8>;

/// For eight bytes at once ("slicing by 8").
constexpr Tables MakeTables() {
  Tables tables{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78u : 0u);
    tables[0][byte] = crc;
  }
  for (std::size_t k = 1; k < tables.size(); ++k) {
    for (std::size_t byte = 0; byte < 256; ++byte) {
      const std::uint32_t before = tables[k - 1][byte];
      tables[k][byte] = before >> 8 ^ tables[0][before & 255];
    }
  }
  return tables;
}

constexpr Tables kTables = MakeTables();

std::uint64_t Load(const std::byte* at) {
  std::uint64_t word = 0;
  std::memcpy(&word, at, sizeof word);
  return word;
}

std::uint32_t AddByte(std::uint32_t crc, std::byte byte) {
  return crc >> 8 ^ kTables[0][(crc ^ std::to_integer<std::uint32_t>(byte)) & 255];
}

#ifdef __x86_64__
__attribute__((target("sse4.2"))) std::uint32_t InstructionCrc(std::span<const std::byte> bytes) {
  std::uint64_t crc = ~0u;
  std::size_t at = 0;
  for (; at + 8 <= bytes.size(); at += 8) crc = _mm_crc32_u64(crc, Load(bytes.data() + at));
  auto rest = static_cast<std::uint32_t>(crc);
  for (; at < bytes.size(); ++at) rest = AddByte(rest, bytes[at]);
  return ~rest;
}

/// Of kLanes whole pieces in a row.
__attribute__((target("sse4.2"))) void InstructionCrcs(const std::byte* pieces,
                                                       std::uint32_t* crcs) {
  std::array<std::uint64_t, kLanes> crc;
  crc.fill(~0u);
  for (std::int64_t at = 0; at < kPiece; at += 8) {
    for (int lane = 0; lane < kLanes; ++lane) {
      crc[lane] = _mm_crc32_u64(crc[lane], Load(pieces + lane * kPiece + at));
    }
  }
  for (int lane = 0; lane < kLanes; ++lane) crcs[lane] = ~static_cast<std::uint32_t>(crc[lane]);
}

bool HasInstruction() {
  static const bool has = __builtin_cpu_supports("sse4.2");
  return has;
}
#endif

/// Of all pieces in `bytes`, the last of which may be shorter.
void CrcsOfPieces(std::span<const std::byte> bytes, std::uint32_t* crcs) {
#ifdef __x86_64__
  if (HasInstruction() && bytes.size() == static_cast<std::size_t>(kLanes * kPiece)) {
    return InstructionCrcs(bytes.data(), crcs);
  }
#endif
  for (; !bytes.empty(); ++crcs) {
    const std::size_t size = std::min(bytes.size(), static_cast<std::size_t>(kPiece));
    *crcs = Crc32c(bytes.first(size));
    bytes = bytes.subspan(size);
  }
}

}  // namespace

std::uint32_t PortableCrc32c(std::span<const std::byte> bytes) {
  std::uint32_t crc = ~0u;
  std::size_t at = 0;
  for (; at + 8 <= bytes.size(); at += 8) {
    std::uint32_t next = 0;
    for (std::size_t k = 0; k < 8; ++k) {
      const auto byte = std::to_integer<std::uint32_t>(bytes[at + k]);
      next ^= kTables[7 - k][byte ^ (k < 4 ? crc >> 8 * k & 255 : 0u)];
    }
    crc = next;
  }
  for (; at < bytes.size(); ++at) crc = AddByte(crc, bytes[at]);
  return ~crc;
}

std::uint32_t Crc32c(std::span<const std::byte> bytes) {
#ifdef __x86_64__
  if (HasInstruction()) return InstructionCrc(bytes);
#endif
  return PortableCrc32c(bytes);
}

std::uint32_t ChecksumOf(const MappedFile& file, std::int64_t begin, std::int64_t count) {
  constexpr std::int64_t kGroup = kLanes * kPiece;
  const std::int64_t size = file.size().count, groups = (size + kGroup - 1) / kGroup;
  std::vector<std::uint32_t> crcs((size + kPiece - 1) / kPiece);
  std::atomic<std::int64_t> next{0};
  std::mutex mutex;
  std::exception_ptr failure;
  const auto work = [&] {
    try {
      std::vector<std::byte> buffer(static_cast<std::size_t>(std::min(kGroup, size)));
      for (std::int64_t group = next++; group < groups; group = next++) {
        const std::int64_t from = group * kGroup, length = std::min(kGroup, size - from);
        file.Read(buffer.data(), from, length);
        if (group == 0) std::fill_n(buffer.begin() + begin, count, std::byte{0});
        CrcsOfPieces({buffer.data(), static_cast<std::size_t>(length)},
                     crcs.data() + group * kLanes);
      }
    } catch (...) {
      next = groups;
      const std::lock_guard lock(mutex);
      failure = std::current_exception();
    }
  };
  // A thread pays from some MiB on, and memory is busy with a few.
  constexpr std::int64_t kEach = 16, kMost = 8;
  std::vector<std::jthread> helpers;
  for (std::int64_t k = 1; k < std::min<std::int64_t>({groups / kEach, kMost, Cores()}); ++k) {
    try {
      helpers.emplace_back(work);
    } catch (const std::system_error&) {
      break;  // the system has no more threads: the others do it
    }
  }
  work();
  helpers.clear();
  if (failure) std::rethrow_exception(failure);
  std::vector<std::byte> list;
  for (std::uint32_t crc : crcs) {
    for (int k = 0; k < 4; ++k) list.push_back(static_cast<std::byte>(crc >> 8 * k & 255));
  }
  return Crc32c(list);
}

}  // namespace tvm_sched::runtime
