// cuBLASLt and cuDNN, opened at run time: what is used of their interfaces, declared anew as the
// driver's is. tests/cpp/cuda_libraries_check.cc holds this together with NVIDIA's headers.
#ifndef TVM_SCHED_KERNELS_CUDA_LIBRARIES_H_
#define TVM_SCHED_KERNELS_CUDA_LIBRARIES_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/cuda/driver_api.h"

namespace tvm_sched::cuda_kernels {

using runtime::cuda::Stream;

// cublasLt.h
struct MatmulAlgorithm {
  std::uint64_t data[8];
};
struct MatmulHeuristic {
  MatmulAlgorithm algorithm;
  std::size_t workspace;
  int state;
  float waves;
  int reserved[4];
};
inline constexpr int kReal32 = 0, kReal16 = 2, kInteger8 = 3;  // cudaDataType
inline constexpr int kInteger32 = 10, kBfloat16 = 14;
inline constexpr int kCompute32 = 68, kComputeInteger = 72,
                     kComputeTf32 = 77;  // cublasComputeType_t
inline constexpr int kDescTransposeA = 3, kDescTransposeB = 4, kTransposed = 1;
inline constexpr int kDescEpilogue = 7, kDescBiasPointer = 8;
inline constexpr int kLayoutBatchCount = 5, kLayoutBatchStride = 6;
inline constexpr int kPreferWorkspace = 1, kPreferAlignmentA = 5;
inline constexpr int kEpilogueDefault = 1, kEpilogueRelu = 2, kEpilogueBias = 4, kEpilogueGelu = 32;

#define TVM_SCHED_CUBLASLT_FUNCTIONS(X)                                                         \
  X(Create, cublasLtCreate, void**)                                                             \
  X(DescCreate, cublasLtMatmulDescCreate, void**, int, int)                                     \
  X(DescSet, cublasLtMatmulDescSetAttribute, void*, int, const void*, std::size_t)              \
  X(DescDestroy, cublasLtMatmulDescDestroy, void*)                                              \
  X(LayoutCreate, cublasLtMatrixLayoutCreate, void**, int, std::uint64_t, std::uint64_t,        \
    std::int64_t)                                                                               \
  X(LayoutSet, cublasLtMatrixLayoutSetAttribute, void*, int, const void*, std::size_t)          \
  X(LayoutDestroy, cublasLtMatrixLayoutDestroy, void*)                                          \
  X(PreferenceCreate, cublasLtMatmulPreferenceCreate, void**)                                   \
  X(PreferenceSet, cublasLtMatmulPreferenceSetAttribute, void*, int, const void*, std::size_t)  \
  X(PreferenceDestroy, cublasLtMatmulPreferenceDestroy, void*)                                  \
  X(Heuristic, cublasLtMatmulAlgoGetHeuristic, void*, void*, void*, void*, void*, void*, void*, \
    int, MatmulHeuristic*, int*)                                                                \
  X(Matmul, cublasLtMatmul, void*, void*, const void*, const void*, void*, const void*, void*,  \
    const void*, const void*, void*, void*, void*, const MatmulAlgorithm*, void*, std::size_t,  \
    Stream)

// cudnn_ops.h, cudnn_cnn.h
struct ConvolutionAlgorithm {
  int algorithm;
  int status;
  float time;
  std::size_t memory;
  int determinism;
  int math;
  int reserved[3];
};
inline constexpr int kCudnnFloat = 0, kCudnnHalf = 2, kCudnnBfloat16 = 9;
inline constexpr int kCudnnNchw = 0, kCrossCorrelation = 1;
inline constexpr int kFmaMath = 3, kDefaultMath = 0, kTensorOpMath = 1;
inline constexpr int kActivationRelu = 1, kActivationIdentity = 5;
inline constexpr int kImplicitGemm = 0;
inline constexpr int kImplicitPrecompGemm = 1;  // the one algorithm that takes identity

#define TVM_SCHED_CUDNN_FUNCTIONS(X)                                                              \
  X(Create, cudnnCreate, void**)                                                                  \
  X(Destroy, cudnnDestroy, void*)                                                                 \
  X(SetStream, cudnnSetStream, void*, Stream)                                                     \
  X(TensorCreate, cudnnCreateTensorDescriptor, void**)                                            \
  X(TensorSet, cudnnSetTensor4dDescriptor, void*, int, int, int, int, int, int)                   \
  X(FilterCreate, cudnnCreateFilterDescriptor, void**)                                            \
  X(FilterSet, cudnnSetFilter4dDescriptor, void*, int, int, int, int, int, int)                   \
  X(ActivationCreate, cudnnCreateActivationDescriptor, void**)                                    \
  X(ActivationSet, cudnnSetActivationDescriptor, void*, int, int, double)                         \
  X(ConvolutionCreate, cudnnCreateConvolutionDescriptor, void**)                                  \
  X(ConvolutionSet, cudnnSetConvolution2dDescriptor, void*, int, int, int, int, int, int, int,    \
    int)                                                                                          \
  X(ConvolutionSetGroups, cudnnSetConvolutionGroupCount, void*, int)                              \
  X(ConvolutionSetMath, cudnnSetConvolutionMathType, void*, int)                                  \
  X(ConvolutionChoose, cudnnGetConvolutionForwardAlgorithm_v7, void*, void*, void*, void*, void*, \
    int, int*, ConvolutionAlgorithm*)                                                             \
  X(ConvolutionWorkspace, cudnnGetConvolutionForwardWorkspaceSize, void*, void*, void*, void*,    \
    void*, int, std::size_t*)                                                                     \
  X(Convolution, cudnnConvolutionForward, void*, const void*, void*, const void*, void*,          \
    const void*, void*, int, void*, std::size_t, const void*, void*, void*)                       \
  X(ConvolutionBiasActivation, cudnnConvolutionBiasActivationForward, void*, const void*, void*,  \
    const void*, void*, const void*, void*, int, void*, std::size_t, const void*, void*,          \
    const void*, void*, const void*, void*, void*, void*)

#define TVM_SCHED_LIBRARY_MEMBER(member, symbol, ...) int (*member)(__VA_ARGS__) = nullptr;
struct CublasLtApi {
  TVM_SCHED_CUBLASLT_FUNCTIONS(TVM_SCHED_LIBRARY_MEMBER)
};
struct CudnnApi {
  TVM_SCHED_CUDNN_FUNCTIONS(TVM_SCHED_LIBRARY_MEMBER)
};
#undef TVM_SCHED_LIBRARY_MEMBER

/// The libraries, opened at the first call: from the file that TVM_SCHED_CUBLASLT or
/// TVM_SCHED_CUDNN names, from NVIDIA's wheels beside tvm_ffi, or from the system; of several
/// versions the newest that the driver supports, where there is a driver. Throws
/// ffi::Error (RuntimeError) where there is none; the message says what to install.
const CublasLtApi& CublasLt();
const CudnnApi& Cudnn();

/// A library that can be opened: its file and version, or why it cannot.
struct InstalledLibrary {
  std::string name;
  std::string file;
  std::size_t version = 0;  // as the library counts: 130100, 91400
  std::string problem;
};
std::vector<InstalledLibrary> FindLibraries();

/// Throw ffi::Error unless a library's call gave 0.
void CheckStatus(int status, const std::string& what);

}  // namespace tvm_sched::cuda_kernels

#endif  // TVM_SCHED_KERNELS_CUDA_LIBRARIES_H_
