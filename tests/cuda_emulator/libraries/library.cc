#include "library.h"

#include <cstdio>
#include <cstdlib>
#include <sstream>

namespace cuda_emulator {

using fake_cuda::current;
using fake_cuda::OwnerOf;
using fake_cuda::StreamRecord;
using fake_cuda::TheState;

int Refuse(const char* function, int status, const std::string& why) {
  std::fprintf(stderr, "emulated GPU: %s: %s\n", function, why.c_str());
  return status;
}

bool IsWrong(const std::string& library, std::uint64_t algorithm) {
  const char* named = std::getenv("FAKE_CUDA_WRONG");
  std::istringstream words(named == nullptr ? "" : named);
  for (std::string word; words >> word;) {
    if (word == library || word == library + ":" + std::to_string(algorithm)) return true;
  }
  return false;
}

std::string WhyNotMemory(const void* address, std::size_t bytes, std::size_t alignment,
                         const char* what) {
  const auto number = reinterpret_cast<std::uintptr_t>(address);
  if (current == nullptr) return "no context is current";
  if (number % alignment != 0) {
    return std::string(what) + " is not at a multiple of " + std::to_string(alignment);
  }
  std::lock_guard lock(TheState().mutex);
  if (OwnerOf(number, bytes) != -2 && fake_cuda::WhyNotReached(number, *current).empty()) return "";
  return std::string(what) + ": " + std::to_string(bytes) + " bytes that GPU " +
         std::to_string(current->device) + " does not reach";
}

int Enqueue(void* stream, std::function<void()> work, const char* function,
            const std::vector<const void*>& arguments) {
  std::lock_guard lock(TheState().mutex);
  StreamRecord* record = fake_cuda::Resolve(static_cast<StreamRecord*>(stream));
  if (record == nullptr || record->context != current) return fake_cuda::kInvalidContext;
  std::vector<std::uintptr_t> addresses;
  for (const void* address : arguments) {
    if (address != nullptr) addresses.push_back(reinterpret_cast<std::uintptr_t>(address));
  }
  fake_cuda::Submit(record, std::move(work), 'K', fake_cuda::KernelTouching(function, addresses));
  return fake_cuda::kOk;
}

std::vector<float> Matrix::Read() const {
  std::vector<float> values(static_cast<std::size_t>(rows * columns));
  auto to = values.begin();
  for (std::int64_t i = 0; i < rows; ++i) {
    for (std::int64_t j = 0; j < columns; ++j) *to++ = static_cast<float>(At(i, j));
  }
  return values;
}

namespace {

/// Sums in float, several columns at a time so that they vectorise.
std::vector<float> MultiplyFloats(const std::vector<float>& a, const std::vector<float>& b,
                                  std::int64_t m, std::int64_t n, std::int64_t k, std::int64_t from,
                                  std::int64_t to) {
  std::vector<float> sums(static_cast<std::size_t>(m * n), 0.0f);
  for (std::int64_t i = 0; i < m; ++i) {
    float* row = sums.data() + i * n;
    for (std::int64_t l = from; l < to; ++l) {
      const float factor = a[i * k + l];
      const float* other = b.data() + l * n;
      for (std::int64_t j = 0; j < n; ++j) row[j] += factor * other[j];
    }
  }
  return sums;
}

std::vector<double> MultiplyExactly(const Matrix& a, const Matrix& b, Type sum_type) {
  std::vector<double> result;
  for (std::int64_t i = 0; i < a.rows; ++i) {
    for (std::int64_t j = 0; j < b.columns; ++j) {
      double sum = 0;
      for (std::int64_t l = 0; l < a.columns; ++l) {
        sum = Round(sum + a.At(i, l) * b.At(l, j), sum_type);
      }
      result.push_back(sum);
    }
  }
  return result;
}

}  // namespace

std::vector<double> Multiply(const Matrix& a, const Matrix& b, Accumulator accumulator,
                             float* workspace) {
  if (accumulator == Accumulator::kHalf) return MultiplyExactly(a, b, Type::kHalf);
  if (accumulator == Accumulator::kDouble) return MultiplyExactly(a, b, Type::kDouble);
  if (accumulator == Accumulator::kInt32) return MultiplyExactly(a, b, Type::kInt32);
  std::vector<float> left = a.Read(), right = b.Read();
  if (accumulator == Accumulator::kTf32) {
    for (float& value : left) value = ToTf32(value);
    for (float& value : right) value = ToTf32(value);
  }
  const std::int64_t m = a.rows, n = b.columns, k = a.columns, half = workspace ? k / 2 : 0;
  if (workspace != nullptr) {
    const std::vector<float> first = MultiplyFloats(left, right, m, n, k, 0, half);
    std::copy(first.begin(), first.end(), workspace);
  }
  const std::vector<float> sums = MultiplyFloats(left, right, m, n, k, half, k);
  std::vector<double> result(sums.begin(), sums.end());
  for (std::size_t i = 0; workspace != nullptr && i < result.size(); ++i) {
    result[i] = workspace[i] + static_cast<float>(result[i]);
  }
  return result;
}

}  // namespace cuda_emulator
