// Checksum of a file, at the speed of memory: CRC-32C of pieces, by several threads.
#ifndef TVM_SCHED_RUNTIME_CHECKSUM_H_
#define TVM_SCHED_RUNTIME_CHECKSUM_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "runtime/mapped_file.h"

namespace tvm_sched::runtime {

/// CRC-32C (Castagnoli) of bytes.
std::uint32_t Crc32c(std::span<const std::byte> bytes);
/// The same without the processor's instruction.
std::uint32_t PortableCrc32c(std::span<const std::byte> bytes);

/// The CRC-32C of the CRC-32Cs of a file's pieces of 64 KiB, as little-endian numbers. `count`
/// bytes from `begin` on, where the checksum itself may stand, count as zeros; they have to lie in
/// the first piece. A change of a single byte always gives another checksum.
/// Throws std::runtime_error where the file cannot be read.
std::uint32_t ChecksumOf(const MappedFile& file, std::int64_t begin, std::int64_t count);

}  // namespace tvm_sched::runtime

#endif  // TVM_SCHED_RUNTIME_CHECKSUM_H_
