#include "kernels/onednn/own_kernel.h"

#include <map>
#include <stdexcept>

#include "kernels/onednn/attention.h"
#include "kernels/onednn/integer_convolution.h"
#include "kernels/onednn/max_pool.h"
#include "kernels/onednn/moments.h"
#include "kernels/onednn/softmax.h"

namespace tvm_sched::onednn {

namespace {

constexpr const char* kIntegers = "integer_convolution";

template <typename Made>
std::unique_ptr<OwnKernel> Make(const Description& description, int threads) {
  return std::make_unique<Made>(description, threads);
}

using Maker = std::unique_ptr<OwnKernel> (*)(const Description&, int);

const std::map<std::string, Maker>& Makers() {
  static const std::map<std::string, Maker> makers{{"attention", Make<Attention>},
                                                   {kIntegers, Make<IntegerConvolution>},
                                                   {"max_pool", Make<MaxPool>},
                                                   {"moments", Make<Moments>},
                                                   {"softmax", Make<Softmax>}};
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
