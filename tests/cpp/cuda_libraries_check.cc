// Compiled, not run, where the headers of cuBLASLt and cuDNN are, see cuda_api_check.cc.
#include <cublasLt.h>
#include <cudnn.h>

#include <cstddef>

#include "kernels/cuda/libraries.h"
#include "same_interface.h"

namespace {

namespace ours = tvm_sched::cuda_kernels;
using tvm_sched::testing::SameInterface;

#define CHECK_BLAS(member, symbol, ...)                                                       \
  static_assert(SameInterface<decltype(ours::CublasLtApi::member), decltype(&symbol)>::value, \
                #symbol);
TVM_SCHED_CUBLASLT_FUNCTIONS(CHECK_BLAS)

#define CHECK_DNN(member, symbol, ...) \
  static_assert(SameInterface<decltype(ours::CudnnApi::member), decltype(&symbol)>::value, #symbol);
TVM_SCHED_CUDNN_FUNCTIONS(CHECK_DNN)

static_assert(sizeof(ours::MatmulAlgorithm) == sizeof(cublasLtMatmulAlgo_t));
static_assert(sizeof(ours::MatmulHeuristic) == sizeof(cublasLtMatmulHeuristicResult_t));
static_assert(offsetof(ours::MatmulHeuristic, workspace) ==
              offsetof(cublasLtMatmulHeuristicResult_t, workspaceSize));
static_assert(ours::kReal32 == CUDA_R_32F && ours::kReal16 == CUDA_R_16F);
static_assert(ours::kBfloat16 == CUDA_R_16BF && ours::kCompute32 == CUBLAS_COMPUTE_32F);
static_assert(ours::kInteger8 == CUDA_R_8I && ours::kInteger32 == CUDA_R_32I);
static_assert(ours::kComputeInteger == CUBLAS_COMPUTE_32I);
static_assert(ours::kComputeTf32 == CUBLAS_COMPUTE_32F_FAST_TF32);
static_assert(ours::kDescTransposeA == CUBLASLT_MATMUL_DESC_TRANSA);
static_assert(ours::kDescTransposeB == CUBLASLT_MATMUL_DESC_TRANSB);
static_assert(ours::kTransposed == CUBLAS_OP_T);
static_assert(ours::kDescEpilogue == CUBLASLT_MATMUL_DESC_EPILOGUE);
static_assert(ours::kDescBiasPointer == CUBLASLT_MATMUL_DESC_BIAS_POINTER);
static_assert(ours::kLayoutBatchCount == CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT);
static_assert(ours::kLayoutBatchStride == CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET);
static_assert(ours::kPreferWorkspace == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES);
static_assert(ours::kPreferAlignmentA == CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES);
static_assert(ours::kPreferAlignmentA + 3 == CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES);
static_assert(ours::kEpilogueDefault == CUBLASLT_EPILOGUE_DEFAULT);
static_assert((ours::kEpilogueRelu | ours::kEpilogueBias) == CUBLASLT_EPILOGUE_RELU_BIAS);
static_assert((ours::kEpilogueGelu | ours::kEpilogueBias) == CUBLASLT_EPILOGUE_GELU_BIAS);

static_assert(sizeof(ours::ConvolutionAlgorithm) == sizeof(cudnnConvolutionFwdAlgoPerf_t));
static_assert(offsetof(ours::ConvolutionAlgorithm, memory) ==
              offsetof(cudnnConvolutionFwdAlgoPerf_t, memory));
static_assert(ours::kCudnnFloat == CUDNN_DATA_FLOAT && ours::kCudnnHalf == CUDNN_DATA_HALF);
static_assert(ours::kCudnnBfloat16 == CUDNN_DATA_BFLOAT16);
static_assert(ours::kTensorOpMath == CUDNN_TENSOR_OP_MATH);
static_assert(ours::kImplicitGemm == CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM);
static_assert(ours::kCudnnNchw == CUDNN_TENSOR_NCHW);
static_assert(ours::kCrossCorrelation == CUDNN_CROSS_CORRELATION);
static_assert(ours::kFmaMath == CUDNN_FMA_MATH && ours::kDefaultMath == CUDNN_DEFAULT_MATH);
static_assert(ours::kActivationRelu == CUDNN_ACTIVATION_RELU);
static_assert(ours::kActivationIdentity == CUDNN_ACTIVATION_IDENTITY);
static_assert(ours::kImplicitPrecompGemm == CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM);

}  // namespace
