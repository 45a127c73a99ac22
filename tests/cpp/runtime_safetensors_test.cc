// Safetensors files: good ones, and every way in which one can be bad.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstring>
#include <fstream>
#include <string>

#include "runtime/json_cursor.h"
#include "runtime/mapped_file.h"
#include "runtime/safetensors.h"

namespace tvm_sched::runtime {
namespace {

class Safetensors : public ::testing::Test {
 protected:
  Safetensors() {
    const auto* info = ::testing::UnitTest::GetInstance()->current_test_info();
    path_ = ::testing::TempDir() + "tvm_sched_" + info->name() + ".safetensors";
  }
  ~Safetensors() override { std::remove(path_.c_str()); }

  void WriteBytes(const std::string& bytes) {
    std::ofstream(path_, std::ios::binary).write(bytes.data(), static_cast<long>(bytes.size()));
  }

  void Write(const std::string& header, const std::string& data) {
    std::string bytes;
    for (int i = 0; i < 8; ++i) bytes.push_back(static_cast<char>(header.size() >> (8 * i) & 0xff));
    WriteBytes(bytes + header + data);
  }

  /// The message of the error that opening the file gives.
  std::string Error() {
    try {
      OpenSafetensors(path_);
    } catch (const FormatError& error) {
      return error.what();
    }
    return "no error";
  }

  void ExpectError(const std::string& part) {
    const std::string message = Error();
    EXPECT_NE(message.find(part), std::string::npos) << message;
    EXPECT_NE(message.find(path_), std::string::npos) << "the file is not named: " << message;
  }

  std::string path_;
};

TEST_F(Safetensors, ReadsTensors) {
  Write(R"({"__metadata__":{"by":"me"},"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
        R"("b":{"dtype":"BF16","shape":[],"data_offsets":[8,10]},)"
        R"("c":{"dtype":"BOOL","shape":[0,3],"data_offsets":[10,10]}})",
        "abcdefghij");
  const SafetensorsFile file = OpenSafetensors(path_);
  ASSERT_EQ(file.tensors.size(), 3U);
  EXPECT_EQ(file.tensors.at("a").spec.ToString(), "float32[2]");
  EXPECT_EQ(std::memcmp(file.tensors.at("a").data, "abcdefgh", 8), 0);
  EXPECT_EQ(file.tensors.at("b").spec.ToString(), "bfloat16[]");
  EXPECT_EQ(std::memcmp(file.tensors.at("b").data, "ij", 2), 0);
  EXPECT_EQ(file.tensors.at("c").spec.ToString(), "bool[0, 3]");
}

TEST_F(Safetensors, ReleasedPagesAreReadAgain) {
  const std::string values(100000, 'v');
  Write(R"({"a":{"dtype":"U8","shape":[100000],"data_offsets":[0,100000]}})", values);
  const SafetensorsFile file = OpenSafetensors(path_);
  const std::byte* data = file.tensors.at("a").data;
  EXPECT_EQ(std::memcmp(data, values.data(), values.size()), 0);
  MappedFile::Release(data, values.size());
  EXPECT_EQ(std::memcmp(data, values.data(), values.size()), 0);
}

TEST_F(Safetensors, OnlyMappedFilesAreReleased) {
  std::string other(100000, 'o');
  MappedFile::Release(other.data(), other.size());  // anonymous pages would come back as zeros
  EXPECT_EQ(other, std::string(100000, 'o'));
}

TEST_F(Safetensors, MissingFile) {
  try {
    OpenSafetensors(path_);
    FAIL();
  } catch (const std::runtime_error& error) {
    EXPECT_NE(std::string(error.what()).find("No such file"), std::string::npos);
  }
}

TEST_F(Safetensors, EmptyAndShortFiles) {
  WriteBytes("");
  ExpectError("has 0 bytes");
  WriteBytes("abc");
  ExpectError("has 3 bytes");
}

TEST_F(Safetensors, HeaderLongerThanFile) {
  WriteBytes(std::string("\x50\0\0\0\0\0\0\0{}", 10));
  ExpectError("its header should have 80 bytes, but the file has 10");
  WriteBytes(std::string(16, '\xff'));
  ExpectError("so it is no safetensors file");
}

TEST_F(Safetensors, HeaderIsNotJson) {
  Write("{\"a\":", "");
  ExpectError("not a JSON document");
  Write("[]", "");
  ExpectError("expected an object");
}

TEST_F(Safetensors, UnknownDtype) {
  Write(R"({"a":{"dtype":"Q7","shape":[2],"data_offsets":[0,8]}})", "abcdefgh");
  ExpectError("header.a.dtype: found \"Q7\", expected one of \"BOOL\"");
}

TEST_F(Safetensors, TruncatedData) {
  Write(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", "abcd");
  ExpectError("header.a");
}

TEST_F(Safetensors, SizeAndOffsetsDisagree) {
  Write(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})", "abcdefgh");
  ExpectError("header.a.data_offsets: span 4 bytes, but float32[2] has 8");
  Write(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[8,0]}})", "abcdefgh");
  ExpectError("header.a.data_offsets[1]: found 0, expected an integer from 8 to 8");
  Write(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0]}})", "abcdefgh");
  ExpectError("expected two offsets");
}

TEST_F(Safetensors, HugeShapesDoNotOverflow) {
  Write(R"({"a":{"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,0]}})",
        "abcdefgh");
  ExpectError("larger than the file's 8 bytes");
  Write(R"({"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}})", "abcdefgh");
  ExpectError("header.a.shape[0]: found -1, expected an integer of at least 0");
}

}  // namespace
}  // namespace tvm_sched::runtime
