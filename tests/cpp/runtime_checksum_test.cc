// Checksums of files: a known value, both forms of the computation, and every changed byte.
#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "runtime/checksum.h"

namespace tvm_sched::runtime {
namespace {

std::vector<std::byte> RandomBytes(std::size_t size) {
  std::mt19937 random(static_cast<unsigned>(size));
  std::vector<std::byte> bytes(size);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

std::uint32_t BitByBit(const std::vector<std::byte>& bytes) {
  std::uint32_t crc = ~0u;
  for (std::byte byte : bytes) {
    crc ^= std::to_integer<std::uint32_t>(byte);
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78u : 0u);
  }
  return ~crc;
}

class FileOfBytes {
 public:
  explicit FileOfBytes(const std::vector<std::byte>& bytes)
      : path_(testing::TempDir() + "checksum_" + std::to_string(bytes.size())) {
    std::ofstream(path_, std::ios::binary)
        .write(reinterpret_cast<const char*>(bytes.data()),
               static_cast<std::streamsize>(bytes.size()));
  }
  ~FileOfBytes() { std::remove(path_.c_str()); }
  FileOfBytes(const FileOfBytes&) = delete;
  FileOfBytes& operator=(const FileOfBytes&) = delete;

  std::uint32_t Checksum(std::int64_t begin, std::int64_t count) const {
    return ChecksumOf(*MappedFile::Open(path_), begin, count);
  }

 private:
  std::string path_;
};

TEST(Checksum, IsCrc32c) {
  const std::string digits = "123456789";
  const auto bytes = std::as_bytes(std::span(digits));
  EXPECT_EQ(Crc32c(bytes), 0xe3069283u);  // the check value of CRC-32C
  EXPECT_EQ(PortableCrc32c(bytes), 0xe3069283u);
  for (std::size_t size : {0, 1, 7, 8, 9, 63, 1000}) {
    const std::vector<std::byte> random = RandomBytes(size);
    EXPECT_EQ(Crc32c(random), BitByBit(random));
    EXPECT_EQ(PortableCrc32c(random), BitByBit(random));
  }
}

TEST(Checksum, IsThatOfThePieces) {
  constexpr std::size_t kPiece = 64 << 10;
  for (std::size_t size : {kPiece - 1, kPiece, 4 * kPiece, 5 * kPiece + 3, 200 * kPiece + 1}) {
    std::vector<std::byte> bytes = RandomBytes(size);
    const FileOfBytes file(bytes);
    std::fill_n(bytes.begin() + 10, 8, std::byte{0});
    std::vector<std::byte> list;
    for (std::size_t at = 0; at < size; at += kPiece) {
      const auto end = static_cast<std::ptrdiff_t>(std::min(size, at + kPiece));
      const std::uint32_t crc =
          BitByBit({bytes.begin() + static_cast<std::ptrdiff_t>(at), bytes.begin() + end});
      for (int k = 0; k < 4; ++k) list.push_back(static_cast<std::byte>(crc >> 8 * k & 255));
    }
    EXPECT_EQ(file.Checksum(10, 8), BitByBit(list)) << size;
  }
}

TEST(Checksum, ChangesWithEachByte) {
  std::vector<std::byte> bytes = RandomBytes(3000);
  const std::uint32_t whole = FileOfBytes(bytes).Checksum(10, 8);
  for (std::size_t at = 0; at < bytes.size(); at += 7) {
    bytes[at] ^= std::byte{0x40};
    const bool left_out = at >= 10 && at < 18;
    EXPECT_EQ(FileOfBytes(bytes).Checksum(10, 8) == whole, left_out) << at;
    bytes[at] ^= std::byte{0x40};
  }
}

}  // namespace
}  // namespace tvm_sched::runtime
