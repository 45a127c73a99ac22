#include "kernels/onednn/own_kernel.h"

#include <map>
#include <stdexcept>

namespace tvm_sched::onednn {

namespace {

constexpr const char* kIntegers = "integer_convolution";

using Maker = std::unique_ptr<OwnKernel> (*)(const Description&, int);

const std::map<std::string, Maker>& Makers() {
  static const std::map<std::string, Maker> makers{{"attention", MakeAttention},
                                                   {"concatenation", MakeConcatenation},
                                                   {kIntegers, MakeIntegerConvolution},
                                                   {"max_pool", MakeMaxPool},
                                                   {"moments", MakeMoments},
                                                   {"softmax", MakeSoftmax}};
  return makers;
}

}  // namespace

bool IsOwn(const std::string& primitive) { return Makers().contains(primitive); }

bool TakesIntegers(const std::string& primitive) { return primitive == kIntegers; }

std::unique_ptr<OwnKernel> MakeOwn(const Description& description, int threads) {
  const auto found = Makers().find(description.primitive);
  if (found == Makers().end()) {
    throw std::invalid_argument("there is no kernel of the kind \"" + description.primitive + "\"");
  }
  return found->second(description, threads);
}

}  // namespace tvm_sched::onednn
