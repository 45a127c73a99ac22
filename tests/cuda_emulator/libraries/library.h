// What the stand-ins for cuBLASLt and cuDNN share: refusals with their reason, memory that a call
// may touch, and work in the order of a stream.
#ifndef TVM_SCHED_TESTS_CUDA_EMULATOR_LIBRARY_H_
#define TVM_SCHED_TESTS_CUDA_EMULATOR_LIBRARY_H_

#include <functional>
#include <string>
#include <vector>

#include "../fake_driver/state.h"
#include "numbers.h"

namespace cuda_emulator {

/// Prints why a call is refused, since a status alone says little; returns the status.
int Refuse(const char* function, int status, const std::string& why);

/// Whether the environment variable FAKE_CUDA_WRONG names this algorithm, such as "cudnn:7" or, for
/// all of a library, "cudnn": it shall compute wrong values.
bool IsWrong(const std::string& library, std::uint64_t algorithm);

/// Why a GPU of the current context cannot use `bytes` from `address` on; empty where it can.
std::string WhyNotMemory(const void* address, std::size_t bytes, std::size_t alignment,
                         const char* what);

/// Queue `work` behind what the stream has; a status of the driver. `arguments`: where the memory
/// lies that it touches.
int Enqueue(void* stream, std::function<void()> work, const char* function,
            const std::vector<const void*>& arguments);

/// `rows` x `columns` numbers that lie `row_step` and `column_step` elements apart.
struct Matrix {
  void* data = nullptr;
  Type type = Type::kFloat;
  std::int64_t rows = 0, columns = 0, row_step = 0, column_step = 0;

  double At(std::int64_t row, std::int64_t column) const {
    return Load(data, row * row_step + column * column_step, type);
  }
  void Set(std::int64_t row, std::int64_t column, double value) const {
    Store(data, row * row_step + column * column_step, type, value);
  }
  /// Row after row as floats.
  std::vector<float> Read() const;
};

/// How sums are kept: float32, float16 (each sum rounded), double, or exactly in int32; and whether
/// factors are rounded to TF32 first.
enum class Accumulator { kFloat, kTf32, kHalf, kDouble, kInt32 };

/// The product of `a` (m x k) and `b` (k x n), row after row. With `workspace` the first half of
/// each sum lies there for a while, as where a library splits k.
std::vector<double> Multiply(const Matrix& a, const Matrix& b, Accumulator accumulator,
                             float* workspace = nullptr);

}  // namespace cuda_emulator

#endif  // TVM_SCHED_TESTS_CUDA_EMULATOR_LIBRARY_H_
