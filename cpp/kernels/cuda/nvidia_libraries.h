// cuBLASLt and cuDNN, opened at run time: what is used of their interfaces, declared anew as the
// driver's is. tests/cpp/cuda_libraries_check.cc holds this together with NVIDIA's headers.
#ifndef TVM_SCHED_KERNELS_CUDA_NVIDIA_LIBRARIES_H_
#define TVM_SCHED_KERNELS_CUDA_NVIDIA_LIBRARIES_H_

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
inline constexpr int kCudnnNchw = 0, kCudnnNhwc = 1, kCrossCorrelation = 1;
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

// cudnn_graph.h. Kinds of descriptors, attributes and their types, values.
inline constexpr int kGraphPointwise = 0, kGraphConvolution = 1, kGraphEngine = 2,
                     kGraphConfiguration = 3, kGraphHeuristics = 4, kGraphPlan = 5,
                     kGraphConvolve = 10, kGraphApply = 13, kGraphOperations = 15,
                     kGraphArguments = 16, kGraphTensor = 17, kGraphMatmul = 18,
                     kGraphMultiply = 19, kGraphReduction = 21, kGraphReduce = 22,
                     kGraphDevice = 38;
inline constexpr int kIsHandle = 0, kIsDataType = 1, kIsBoolean = 2, kIsInteger = 3, kIsFloat = 4,
                     kIsPointer = 6, kIsConvolutionMode = 7, kIsHeuristicMode = 8,
                     kIsNumericalNote = 11, kIsPointwiseMode = 14, kIsDescriptor = 15,
                     kIsReduction = 18, kIsBehaviorNote = 19, kIsInt32 = 23, kIsText = 24;
inline constexpr int kPointwiseMode = 0, kPointwiseCompute = 1, kPointwiseAxis = 9,
                     kConvolutionCompute = 100, kConvolutionMode = 101, kConvolutionDilations = 102,
                     kConvolutionStrides = 103, kConvolutionPostPadding = 104,
                     kConvolutionPrePadding = 105, kConvolutionDimensions = 106,
                     kHeuristicMode = 200, kHeuristicGraph = 201, kHeuristicResults = 202,
                     kHeuristicDevice = 204, kConfigurationEngine = 300, kPlanHandle = 400,
                     kPlanConfiguration = 401, kPlanWorkspace = 402, kPlanText = 405,
                     kPlanDevice = 407, kConvolveAlpha = 700, kConvolveBeta = 701,
                     kConvolveSettings = 702, kConvolveW = 703, kConvolveX = 704, kConvolveY = 705,
                     kApplySettings = 750, kApplyX = 751, kApplyB = 752, kApplyY = 753,
                     kApplyMask = 758, kOperationsHandle = 800, kOperationsList = 801,
                     kTensorAlignment = 900, kTensorType = 901, kTensorExtents = 902,
                     kTensorStrides = 903, kTensorId = 906, kTensorVirtual = 907,
                     kTensorByValue = 908, kArgumentIds = 1000, kArgumentPointers = 1001,
                     kArgumentWorkspace = 1003, kEngineIndex = 1301, kEngineNumerics = 1303,
                     kEngineBehavior = 1305, kMatmulCompute = 1500, kMultiplyA = 1520,
                     kMultiplyB = 1521, kMultiplyC = 1522, kMultiplySettings = 1523,
                     kReductionMode = 1600, kReductionCompute = 1601, kReduceX = 1610,
                     kReduceY = 1611, kReduceSettings = 1612, kDeviceOrdinal = 2700,
                     kDeviceText = 2702;
inline constexpr int kCudnnInt32 = 4, kCudnnBoolean = 11;
inline constexpr int kApplyAdd = 0, kApplyMultiply = 1, kApplyDivide = 6, kApplySubtract = 9,
                     kApplyExp = 13, kApplyLog = 15, kApplyRelu = 100, kApplyGreaterEqual = 303,
                     kApplyIndex = 501, kApplySelect = 601;
inline constexpr int kReduceAdd = 0, kReduceMax = 3;
inline constexpr int kHeuristicsFallback = 2, kHeuristicsA = 3;
inline constexpr int kNoteTensorCore = 0, kNoteDownConvert = 1, kNoteReducedSums = 2,
                     kNoteNondeterministic = 4, kNoteRuntimeCompilation = 0;

#define TVM_SCHED_CUDNN_GRAPH_FUNCTIONS(X)                                              \
  X(Create, cudnnBackendCreateDescriptor, int, void**)                                  \
  X(Destroy, cudnnBackendDestroyDescriptor, void*)                                      \
  X(Finalize, cudnnBackendFinalize, void*)                                              \
  X(Set, cudnnBackendSetAttribute, void*, int, int, std::int64_t, const void*)          \
  X(Get, cudnnBackendGetAttribute, void*, int, int, std::int64_t, std::int64_t*, void*) \
  X(Execute, cudnnBackendExecute, void*, void*, void*)

#define TVM_SCHED_LIBRARY_MEMBER(member, symbol, ...) int (*member)(__VA_ARGS__) = nullptr;
struct CublasLtApi {
  TVM_SCHED_CUBLASLT_FUNCTIONS(TVM_SCHED_LIBRARY_MEMBER)
};
struct CudnnApi {
  TVM_SCHED_CUDNN_FUNCTIONS(TVM_SCHED_LIBRARY_MEMBER)
};
struct CudnnGraphApi {
  TVM_SCHED_CUDNN_GRAPH_FUNCTIONS(TVM_SCHED_LIBRARY_MEMBER)
};
#undef TVM_SCHED_LIBRARY_MEMBER

/// The libraries, opened at the first call: from the file that TVM_SCHED_CUBLASLT or
/// TVM_SCHED_CUDNN names, from NVIDIA's wheels beside tvm_ffi, or from the system; of several
/// versions the newest that the driver supports, where there is a driver. Throws
/// ffi::Error (RuntimeError) where there is none; the message says what to install.
const CublasLtApi& CublasLt();
const CudnnApi& Cudnn();

/// cuDNN's graph interface; null where cuDNN is missing or has none.
const CudnnGraphApi* CudnnGraph();
/// The version of cuDNN as it counts, such as 91900; 0 where it is missing.
std::size_t CudnnVersion();

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

#endif  // TVM_SCHED_KERNELS_CUDA_NVIDIA_LIBRARIES_H_
