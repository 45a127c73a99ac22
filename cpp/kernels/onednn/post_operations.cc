#include "kernels/onednn/post_operations.h"

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
      {"relu", algorithm::eltwise_relu},        {"clip", algorithm::eltwise_clip},
      {"sigmoid", algorithm::eltwise_logistic}, {"tanh", algorithm::eltwise_tanh},
      {"gelu", algorithm::eltwise_gelu_erf},    {"gelu_tanh", algorithm::eltwise_gelu_tanh},
      {"silu", algorithm::eltwise_swish},       {"linear", algorithm::eltwise_linear},
      {"exp", algorithm::eltwise_exp},          {"abs", algorithm::eltwise_abs},
      {"sqrt", algorithm::eltwise_sqrt},        {"square", algorithm::eltwise_square}};
  return Find(known, name);
}

algorithm Binary(const std::string& name) {
  static const std::map<std::string, algorithm> known{
      {"add", algorithm::binary_add},      {"subtract", algorithm::binary_sub},
      {"multiply", algorithm::binary_mul}, {"divide", algorithm::binary_div},
      {"maximum", algorithm::binary_max},  {"minimum", algorithm::binary_min}};
  return Find(known, name);
}

}  // namespace

dnnl::post_ops PostOperations(const Description& description) {
  dnnl::post_ops result;
  for (const PostOperation& post : description.post) {
    if (post.input < 0) {
      result.append_eltwise(Elementwise(post.name), post.alpha, post.beta);
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
    const int argument = DNNL_ARG_ATTR_MULTIPLE_POST_OP(static_cast<int>(k)) | DNNL_ARG_SRC_1;
    bindings.push_back({argument, input, LayoutOf(description.operands[input])});
  }
  return bindings;
}

}  // namespace tvm_sched::onednn
