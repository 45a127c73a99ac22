// A product as cuBLASLt describes it: which are allowed, and what it computes.
#ifndef TVM_SCHED_TESTS_CUDA_EMULATOR_PRODUCT_H_
#define TVM_SCHED_TESTS_CUDA_EMULATOR_PRODUCT_H_

#include <string>

#include "library.h"

namespace cuda_emulator {

// cudaDataType, cublasComputeType_t, bits of cublasLtEpilogue_t
inline constexpr int kReal32 = 0, kReal64 = 1, kReal16 = 2, kInteger8 = 3, kInteger32 = 10,
                     kBrain16 = 14;
inline constexpr int kCompute16 = 64, kCompute32 = 68, kCompute32Pedantic = 69, kCompute64 = 70,
                     kCompute32I = 72, kComputeTf32 = 77;
inline constexpr int kRelu = 2, kBias = 4, kGelu = 32;

struct MatmulDesc {
  int compute = 0, scale = 0;
  int transpose_a = 0, transpose_b = 0, epilogue = 1, bias_type = -1, pointer_mode = 0;
  const void* bias = nullptr;
  std::int64_t bias_stride = 0;
};

struct MatrixLayout {
  int type = 0;
  std::uint64_t rows = 0, columns = 0;
  std::int64_t leading = 0, stride = 0;
  std::int32_t batches = 1;
  int order = 0;  // 0: columns one after another, 1: rows
};

/// The element type of a cudaDataType; kNone for those that are not known here.
Type TypeOf(int type);

/// What the documentation of cublasLtMatmul() has against a product; empty where nothing.
std::string WhyNotProduct(const MatmulDesc& desc, const MatrixLayout& a, const MatrixLayout& b,
                          const MatrixLayout& c, const MatrixLayout& d);

/// The same for equal problems, so that an algorithm of another one is noticed.
std::uint64_t Fingerprint(const MatmulDesc& desc, const MatrixLayout& a, const MatrixLayout& b,
                          const MatrixLayout& d);

/// Bytes of the workspace: where k is long the sums are split, as a library would.
std::size_t WorkspaceOf(const MatmulDesc& desc, const MatrixLayout& a, const MatrixLayout& d);

/// Bytes from the first element to behind the last one of all batches.
std::size_t Extent(const MatrixLayout& layout);

/// One call, with everything that it needs when its turn comes.
struct Product {
  MatmulDesc desc;
  MatrixLayout a, b, c, d;
  double alpha, beta;
  const void *left, *right, *third;
  void* out;
  float* workspace;
  bool wrong = false;  // its last row and column

  void Run() const;
};

}  // namespace cuda_emulator

#endif  // TVM_SCHED_TESTS_CUDA_EMULATOR_PRODUCT_H_
