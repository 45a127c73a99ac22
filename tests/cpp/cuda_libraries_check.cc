// Compiled, not run, where the headers of cuBLASLt and cuDNN are, see cuda_api_check.cc.
#include <cublasLt.h>
#include <cudnn.h>

#include <cstddef>

#include "kernels/cuda/nvidia_libraries.h"
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

#define CHECK_GRAPH(member, symbol, ...)                                                        \
  static_assert(SameInterface<decltype(ours::CudnnGraphApi::member), decltype(&symbol)>::value, \
                #symbol);
TVM_SCHED_CUDNN_GRAPH_FUNCTIONS(CHECK_GRAPH)

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

static_assert(ours::kGraphPointwise == CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
static_assert(ours::kGraphConvolution == CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR);
static_assert(ours::kGraphEngine == CUDNN_BACKEND_ENGINE_DESCRIPTOR);
static_assert(ours::kGraphConfiguration == CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
static_assert(ours::kGraphHeuristics == CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
static_assert(ours::kGraphPlan == CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
static_assert(ours::kGraphConvolve == CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR);
static_assert(ours::kGraphApply == CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
static_assert(ours::kGraphOperations == CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
static_assert(ours::kGraphArguments == CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
static_assert(ours::kGraphTensor == CUDNN_BACKEND_TENSOR_DESCRIPTOR);
static_assert(ours::kGraphMatmul == CUDNN_BACKEND_MATMUL_DESCRIPTOR);
static_assert(ours::kGraphMultiply == CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
static_assert(ours::kGraphReduction == CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
static_assert(ours::kGraphReduce == CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
static_assert(ours::kGraphDevice == CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR);
static_assert(ours::kIsHandle == CUDNN_TYPE_HANDLE);
static_assert(ours::kIsDataType == CUDNN_TYPE_DATA_TYPE);
static_assert(ours::kIsBoolean == CUDNN_TYPE_BOOLEAN);
static_assert(ours::kIsInteger == CUDNN_TYPE_INT64);
static_assert(ours::kIsFloat == CUDNN_TYPE_FLOAT);
static_assert(ours::kIsPointer == CUDNN_TYPE_VOID_PTR);
static_assert(ours::kIsConvolutionMode == CUDNN_TYPE_CONVOLUTION_MODE);
static_assert(ours::kIsHeuristicMode == CUDNN_TYPE_HEUR_MODE);
static_assert(ours::kIsNumericalNote == CUDNN_TYPE_NUMERICAL_NOTE);
static_assert(ours::kIsPointwiseMode == CUDNN_TYPE_POINTWISE_MODE);
static_assert(ours::kIsDescriptor == CUDNN_TYPE_BACKEND_DESCRIPTOR);
static_assert(ours::kIsReduction == CUDNN_TYPE_REDUCTION_OPERATOR_TYPE);
static_assert(ours::kIsBehaviorNote == CUDNN_TYPE_BEHAVIOR_NOTE);
static_assert(ours::kIsInt32 == CUDNN_TYPE_INT32);
static_assert(ours::kIsText == CUDNN_TYPE_CHAR);
static_assert(ours::kPointwiseMode == CUDNN_ATTR_POINTWISE_MODE);
static_assert(ours::kPointwiseCompute == CUDNN_ATTR_POINTWISE_MATH_PREC);
static_assert(ours::kPointwiseAxis == CUDNN_ATTR_POINTWISE_AXIS);
static_assert(ours::kConvolutionCompute == CUDNN_ATTR_CONVOLUTION_COMP_TYPE);
static_assert(ours::kConvolutionMode == CUDNN_ATTR_CONVOLUTION_CONV_MODE);
static_assert(ours::kConvolutionDilations == CUDNN_ATTR_CONVOLUTION_DILATIONS);
static_assert(ours::kConvolutionStrides == CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES);
static_assert(ours::kConvolutionPostPadding == CUDNN_ATTR_CONVOLUTION_POST_PADDINGS);
static_assert(ours::kConvolutionPrePadding == CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS);
static_assert(ours::kConvolutionDimensions == CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS);
static_assert(ours::kHeuristicMode == CUDNN_ATTR_ENGINEHEUR_MODE);
static_assert(ours::kHeuristicGraph == CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH);
static_assert(ours::kHeuristicResults == CUDNN_ATTR_ENGINEHEUR_RESULTS);
static_assert(ours::kHeuristicDevice == CUDNN_ATTR_ENGINEHEUR_DEVICEPROP);
static_assert(ours::kConfigurationEngine == CUDNN_ATTR_ENGINECFG_ENGINE);
static_assert(ours::kPlanConfiguration == CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG);
static_assert(ours::kPlanWorkspace == CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE);
static_assert(ours::kPlanText == CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION);
static_assert(ours::kPlanDevice == CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP);
static_assert(ours::kConvolveAlpha == CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA);
static_assert(ours::kConvolveBeta == CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA);
static_assert(ours::kConvolveSettings == CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC);
static_assert(ours::kConvolveW == CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W);
static_assert(ours::kConvolveX == CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X);
static_assert(ours::kConvolveY == CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y);
static_assert(ours::kApplySettings == CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR);
static_assert(ours::kApplyX == CUDNN_ATTR_OPERATION_POINTWISE_XDESC);
static_assert(ours::kApplyB == CUDNN_ATTR_OPERATION_POINTWISE_BDESC);
static_assert(ours::kApplyY == CUDNN_ATTR_OPERATION_POINTWISE_YDESC);
static_assert(ours::kApplyMask == CUDNN_ATTR_OPERATION_POINTWISE_TDESC);
static_assert(ours::kOperationsList == CUDNN_ATTR_OPERATIONGRAPH_OPS);
static_assert(ours::kTensorAlignment == CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT);
static_assert(ours::kTensorType == CUDNN_ATTR_TENSOR_DATA_TYPE);
static_assert(ours::kTensorExtents == CUDNN_ATTR_TENSOR_DIMENSIONS);
static_assert(ours::kTensorStrides == CUDNN_ATTR_TENSOR_STRIDES);
static_assert(ours::kTensorId == CUDNN_ATTR_TENSOR_UNIQUE_ID);
static_assert(ours::kTensorVirtual == CUDNN_ATTR_TENSOR_IS_VIRTUAL);
static_assert(ours::kTensorByValue == CUDNN_ATTR_TENSOR_IS_BY_VALUE);
static_assert(ours::kArgumentIds == CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS);
static_assert(ours::kArgumentPointers == CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS);
static_assert(ours::kArgumentWorkspace == CUDNN_ATTR_VARIANT_PACK_WORKSPACE);
static_assert(ours::kEngineIndex == CUDNN_ATTR_ENGINE_GLOBAL_INDEX);
static_assert(ours::kEngineNumerics == CUDNN_ATTR_ENGINE_NUMERICAL_NOTE);
static_assert(ours::kEngineBehavior == CUDNN_ATTR_ENGINE_BEHAVIOR_NOTE);
static_assert(ours::kMatmulCompute == CUDNN_ATTR_MATMUL_COMP_TYPE);
static_assert(ours::kMultiplyA == CUDNN_ATTR_OPERATION_MATMUL_ADESC);
static_assert(ours::kMultiplyB == CUDNN_ATTR_OPERATION_MATMUL_BDESC);
static_assert(ours::kMultiplyC == CUDNN_ATTR_OPERATION_MATMUL_CDESC);
static_assert(ours::kMultiplySettings == CUDNN_ATTR_OPERATION_MATMUL_DESC);
static_assert(ours::kReductionMode == CUDNN_ATTR_REDUCTION_OPERATOR);
static_assert(ours::kReductionCompute == CUDNN_ATTR_REDUCTION_COMP_TYPE);
static_assert(ours::kReduceX == CUDNN_ATTR_OPERATION_REDUCTION_XDESC);
static_assert(ours::kReduceY == CUDNN_ATTR_OPERATION_REDUCTION_YDESC);
static_assert(ours::kReduceSettings == CUDNN_ATTR_OPERATION_REDUCTION_DESC);
static_assert(ours::kDeviceOrdinal == CUDNN_ATTR_DEVICEPROP_DEVICE_ID);
static_assert(ours::kDeviceText == CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION);
static_assert(ours::kCudnnInt32 == CUDNN_DATA_INT32);
static_assert(ours::kCudnnBoolean == CUDNN_DATA_BOOLEAN);
static_assert(ours::kCudnnNhwc == CUDNN_TENSOR_NHWC);
static_assert(ours::kApplyAdd == CUDNN_POINTWISE_ADD);
static_assert(ours::kApplyMultiply == CUDNN_POINTWISE_MUL);
static_assert(ours::kApplyDivide == CUDNN_POINTWISE_DIV);
static_assert(ours::kApplySubtract == CUDNN_POINTWISE_SUB);
static_assert(ours::kApplyExp == CUDNN_POINTWISE_EXP);
static_assert(ours::kApplyLog == CUDNN_POINTWISE_LOG);
static_assert(ours::kApplyRelu == CUDNN_POINTWISE_RELU_FWD);
static_assert(ours::kApplyGreaterEqual == CUDNN_POINTWISE_CMP_GE);
static_assert(ours::kApplyIndex == CUDNN_POINTWISE_GEN_INDEX);
static_assert(ours::kApplySelect == CUDNN_POINTWISE_BINARY_SELECT);
static_assert(ours::kReduceAdd == CUDNN_REDUCE_TENSOR_ADD);
static_assert(ours::kReduceMax == CUDNN_REDUCE_TENSOR_MAX);
static_assert(ours::kHeuristicsFallback == CUDNN_HEUR_MODE_FALLBACK);
static_assert(ours::kHeuristicsA == CUDNN_HEUR_MODE_A);
static_assert(ours::kNoteTensorCore == CUDNN_NUMERICAL_NOTE_TENSOR_CORE);
static_assert(ours::kNoteDownConvert == CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS);
static_assert(ours::kNoteReducedSums == CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION);
static_assert(ours::kNoteNondeterministic == CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC);
static_assert(ours::kNoteRuntimeCompilation == CUDNN_BEHAVIOR_NOTE_RUNTIME_COMPILATION);
static_assert(ours::kOperationsHandle == CUDNN_ATTR_OPERATIONGRAPH_HANDLE);
static_assert(ours::kPlanHandle == CUDNN_ATTR_EXECUTION_PLAN_HANDLE);

}  // namespace
