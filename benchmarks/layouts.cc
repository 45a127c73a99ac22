// Times the convolutions of a network by oneDNN with channels last and in blocked layouts: `layouts.py` compiles and calls it.
//
// layouts THREADS SECONDS < convolutions, a line each: batch, groups, input and output channels of a group, then height
// and width of the source, the result, the kernel, strides, dilation, padding low and high, then what follows: 0 nothing,
// 1 ReLU, 2 SiLU, 3 hard swish, 4 a sum. A line of output: number of the convolution, layout, implementation, seconds.
#include <oneapi/tbb/task_arena.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <oneapi/dnnl/dnnl.hpp>
#include <string>
#include <unordered_map>
#include <vector>

using dnnl::memory;
using Tag = memory::format_tag;

namespace {

const auto kFloat = memory::data_type::f32;
constexpr std::size_t kTensor = 48 << 20, kTensors = 3;  // bytes of one, and how many take turns
constexpr int kPasses = 4;                               // over the network in one layout; the first warms up

const dnnl::engine& Engine() {
  static const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  return engine;
}

using Pair = memory::dims;  // height, width

struct Convolution {
  memory::dim batch, groups, in, out;
  Pair source = Pair(2), result = Pair(2), kernel = Pair(2), strides = Pair(2), dilation = Pair(2);
  Pair low = Pair(2), high = Pair(2);
  int follows;
};

bool Read(std::istream& stream, Convolution* found) {
  stream >> found->batch >> found->groups >> found->in >> found->out;
  for (Pair* pair : {&found->source, &found->result, &found->kernel, &found->strides, &found->dilation, &found->low,
                     &found->high}) {
    stream >> (*pair)[0] >> (*pair)[1];
  }
  return static_cast<bool>(stream >> found->follows);
}

/// As in a network: a kernel reads what the one before it wrote, and writes where an earlier tensor was.
memory Shared(const memory::desc& layout, std::size_t turn) {
  static char* const base = [] {
    auto* made = static_cast<char*>(std::aligned_alloc(1 << 21, kTensor * kTensors));
    std::memset(made, 0, kTensor * kTensors);
    return made;
  }();
  return memory(layout, Engine(), base + turn % kTensors * kTensor);
}

memory Own(const memory::desc& layout) {
  memory made(layout, Engine());
  std::memset(made.get_data_handle(), 0, layout.get_size());
  return made;
}

struct Kernel {
  std::string layout, implementation;
  dnnl::primitive primitive;
  std::unordered_map<int, memory> arguments;
  std::vector<double> seconds;

  double Typical() {
    std::sort(seconds.begin(), seconds.end());
    return seconds[seconds.size() / 4];
  }
};

/// In a layout, by oneDNN's implementation of that number in its order; without a primitive where there is none of it.
Kernel Make(const Convolution& c, const char* name, Tag tag, int number, std::size_t turn) {
  Kernel made{name, "", {}, {}, {}};
  const memory::dim in = c.in * c.groups, out = c.out * c.groups;
  memory::dims filters{c.out, c.in, c.kernel[0], c.kernel[1]};
  if (c.groups > 1) filters.insert(filters.begin(), c.groups);
  const bool first = in <= 4 && tag != Tag::nhwc;  // a picture: blocked convolutions read it as it comes
  const memory::desc source({c.batch, in, c.source[0], c.source[1]}, kFloat, first ? Tag::nchw : tag);
  const memory::desc result({c.batch, out, c.result[0], c.result[1]}, kFloat, tag);
  const memory::desc weights(filters, kFloat, Tag::any), bias({out}, kFloat, Tag::x);
  dnnl::post_ops post;
  if (c.follows == 1) post.append_eltwise(dnnl::algorithm::eltwise_relu, 0, 0);
  if (c.follows == 2) post.append_eltwise(dnnl::algorithm::eltwise_swish, 1, 0);
  if (c.follows == 3) post.append_eltwise(dnnl::algorithm::eltwise_hardswish, 1.F / 6, 0.5F);
  if (c.follows == 4) post.append_binary(dnnl::algorithm::binary_add, result);
  dnnl::primitive_attr attributes;
  attributes.set_post_ops(post);
  dnnl::convolution_forward::primitive_desc found(
      Engine(), dnnl::prop_kind::forward_inference, dnnl::algorithm::convolution_direct, source, weights, bias, result,
      c.strides, c.dilation, c.low, c.high, attributes, true);
  for (int k = 0; found && k < number; ++k) {
    if (!found.next_impl()) return made;
  }
  if (!found) return made;
  made.implementation = found.impl_info_str();
  if (made.implementation.find("ref") != std::string::npos) return made;
  made.primitive = dnnl::convolution_forward(found);
  made.arguments = {{DNNL_ARG_SRC, Shared(source, turn)},
                    {DNNL_ARG_WEIGHTS, Own(found.weights_desc())},
                    {DNNL_ARG_BIAS, Own(bias)},
                    {DNNL_ARG_DST, Shared(result, turn + 1)}};
  if (c.follows == 4) {
    made.arguments[DNNL_ARG_ATTR_MULTIPLE_POST_OP(0) | DNNL_ARG_SRC_1] = Shared(result, turn + 2);
  }
  return made;
}

void Run(Kernel& kernel, bool counts, dnnl::stream& stream) {
  if (!kernel.primitive) return;
  const auto begin = std::chrono::steady_clock::now();
  kernel.primitive.execute(stream, kernel.arguments);
  stream.wait();
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  if (counts) kernel.seconds.push_back(took.count());
}

}  // namespace

int main(int, char** arguments) {
  dnnl::set_primitive_cache_capacity(0);  // oneDNN 3.2 does not go on to others where it has one
  const int threads = std::atoi(arguments[1]);
  const double limit = std::atof(arguments[2]);
  std::vector<Convolution> network;
  for (Convolution each; Read(std::cin, &each);) network.push_back(each);
  const struct {
    const char* name;
    Tag tag;
    int number;
  } ways[] = {{"last", Tag::nhwc, 0},       {"last", Tag::nhwc, 1},      {"last", Tag::nhwc, 2},
              {"last", Tag::nhwc, 3},       {"blocked", Tag::nChw16c, 0}, {"blocked", Tag::nChw8c, 0}};
  tbb::task_arena(threads).execute([&] {
    std::vector<std::vector<Kernel>> made;
    for (const auto& way : ways) {
      auto& kernels = made.emplace_back();
      for (std::size_t k = 0; k < network.size(); ++k) {
        kernels.push_back(Make(network[k], way.name, way.tag, way.number, k));
      }
    }
    dnnl::stream stream(Engine());
    const auto begin = std::chrono::steady_clock::now();
    do {
      for (auto& kernels : made) {
        for (int pass = 0; pass < kPasses; ++pass) {
          for (Kernel& kernel : kernels) Run(kernel, pass > 0, stream);
        }
      }
    } while (std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() < limit);
    for (auto& kernels : made) {
      for (std::size_t k = 0; k < network.size(); ++k) {
        Kernel& kernel = kernels[k];
        if (!kernel.primitive) continue;
        std::printf("%zu %s %s %.9f\n", k, kernel.layout.c_str(), kernel.implementation.c_str(), kernel.Typical());
      }
    }
  });
}
