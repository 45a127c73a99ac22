#include "kernels/onednn/post_operations.h"

#include <cmath>
#include <limits>
#include <map>
#include <stdexcept>
#include <string>

namespace tvm_sched::onednn {

namespace {

using dnnl::algorithm;

algorithm Find(const std::map<std::string, algorithm>& known, const std::string& name) {
  const auto found = known.find(name);
  if (found == known.end()) throw std::invalid_argument("oneDNN has no post-operation " + name);
  return found->second;
}

algorithm Elementwise(const std::string& name) {
  static const std::map<std::string, algorithm> known{
      {"relu", algorithm::eltwise_relu},
      {"clip", algorithm::eltwise_clip},
      {"sigmoid", algorithm::eltwise_logistic},
      {"tanh", algorithm::eltwise_tanh},
      {"gelu", algorithm::eltwise_gelu_erf},
      {"gelu_tanh", algorithm::eltwise_gelu_tanh},
      {"silu", algorithm::eltwise_swish},
      {"linear", algorithm::eltwise_linear},
      {"exp", algorithm::eltwise_exp},
      {"log", algorithm::eltwise_log},
      {"abs", algorithm::eltwise_abs},
      {"sqrt", algorithm::eltwise_sqrt},
      {"square", algorithm::eltwise_square},
      {"elu", algorithm::eltwise_elu},
      {"mish", algorithm::eltwise_mish},
      {"softplus", algorithm::eltwise_soft_relu},
      {"hard_sigmoid", algorithm::eltwise_hardsigmoid},
      {"hard_swish", algorithm::eltwise_hardswish}};
  return Find(known, name);
}

algorithm Binary(const std::string& name) {
  static const std::map<std::string, algorithm> known{
      {"add", algorithm::binary_add},      {"subtract", algorithm::binary_sub},
      {"multiply", algorithm::binary_mul}, {"divide", algorithm::binary_div},
      {"maximum", algorithm::binary_max},  {"minimum", algorithm::binary_min}};
  return Find(known, name);
}

/// A bound of a clip; the greatest float32 stands for infinity.
float Bound(float given) {
  const bool open = std::abs(given) == std::numeric_limits<float>::max();
  return open ? std::copysign(std::numeric_limits<float>::infinity(), given) : given;
}

constexpr const char* kPRelu = "prelu";

/// A bit for each dimension along which the slopes differ.
int SlopesMask(const Operand& slopes) {
  int mask = 0;
  for (std::size_t d = 0; d < slopes.dims.size(); ++d) {
    if (slopes.dims[d] > 1) mask |= 1 << d;
  }
  return mask;
}

}  // namespace

dnnl::post_ops PostOperations(const Description& description) {
  dnnl::post_ops result;
  for (const PostOperation& post : description.post) {
    if (post.name == kPRelu) {
      result.append_prelu(SlopesMask(description.operands[post.input]));
    } else if (post.input < 0) {
      const bool clip = post.name == "clip";
      result.append_eltwise(Elementwise(post.name), clip ? Bound(post.alpha) : post.alpha,
                            clip ? Bound(post.beta) : post.beta);
    } else {
      result.append_binary(Binary(post.name), LayoutOf(description.operands[post.input]));
    }
  }
  return result;
}

std::vector<Prepared::Binding> PostBindings(const Description& description) {
  std::vector<Prepared::Binding> bindings;
  for (std::size_t k = 0; k < description.post.size(); ++k) {
    const int input = description.post[k].input;
    if (input < 0) continue;
    const int role = description.post[k].name == kPRelu ? DNNL_ARG_WEIGHTS : DNNL_ARG_SRC_1;
    const int argument = DNNL_ARG_ATTR_MULTIPLE_POST_OP(static_cast<int>(k)) | role;
    bindings.push_back({argument, input, LayoutOf(description.operands[input])});
  }
  return bindings;
}

}  // namespace tvm_sched::onednn
