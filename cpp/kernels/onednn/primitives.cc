// Makes primitives from descriptions: one function for each kind.
#include <algorithm>
#include <map>
#include <optional>
#include <stdexcept>

#include "kernels/onednn/kernel.h"
#include "kernels/onednn/packing.h"
#include "kernels/onednn/post_operations.h"

namespace tvm_sched::onednn {

using dnnl::memory;

namespace {

using Bindings = std::vector<Prepared::Binding>;

constexpr auto kInference = dnnl::prop_kind::forward_inference;

memory::data_type TypeOf(const Operand& operand) {
  switch (operand.type) {
    case DataType::kFloat32:
      return memory::data_type::f32;
    case DataType::kBfloat16:
      return memory::data_type::bf16;
    case DataType::kInt32:
      return memory::data_type::s32;
    case DataType::kInt8:
      return memory::data_type::s8;
    default:
      return memory::data_type::u8;
  }
}

memory::desc Any(const Operand& operand) {
  return memory::desc(operand.dims, TypeOf(operand), memory::format_tag::any);
}

/// A matrix is read as it lies unless it is a parameter, which is laid out anew once.
memory::desc Matrix(const Operand& operand) {
  return operand.parameter ? Any(operand) : LayoutOf(operand);
}

/// The source of a product as it is multiplied: rounded to bfloat16 where the weights are that.
memory::desc Source(const Description& description) {
  Operand source = description.operands[0];
  if (description.operands[1].type == DataType::kBfloat16) source.type = DataType::kBfloat16;
  return LayoutOf(source);
}

dnnl::primitive_attr Attributes(const Description& description) {
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  attributes.set_post_ops(PostOperations(description));
  if (description.source_zero != 0) attributes.set_zero_points_mask(DNNL_ARG_SRC, 0);
  return attributes;
}

/// Descriptor of a primitive with weights, which oneDNN has several implementations of.
template <typename Primitive>
using Describe = typename Primitive::primitive_desc (*)(const Description&, const dnnl::engine&);

/// Once primitives were made, oneDNN 3.2 names some implementations twice before it goes on.
template <typename Primitive>
typename Primitive::primitive_desc Chosen(const Description& description,
                                          const dnnl::engine& engine,
                                          Describe<Primitive> describe) {
  auto found = describe(description, engine);
  if (description.implementation.empty()) return found;
  do {
    if (found.impl_info_str() == description.implementation) return found;
  } while (found.next_impl());
  return describe(description, engine);
}

template <typename Primitive>
std::vector<std::string> Names(const Description& description, const dnnl::engine& engine,
                               Describe<Primitive> describe) {
  std::vector<std::string> names;
  auto found = describe(description, engine);
  do {
    const std::string name = found.impl_info_str();
    if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
  } while (found.next_impl());
  return names;
}

/// Source, weights, bias where there is one, and the result: convolution and matmul.
template <typename Primitive>
Prepared WithWeights(const Description& description, const dnnl::engine& engine,
                     Describe<Primitive> describe) {
  const auto found = Chosen<Primitive>(description, engine, describe);
  Bindings bindings{{DNNL_ARG_SRC, 0, found.src_desc()},
                    {DNNL_ARG_WEIGHTS, 1, found.weights_desc()}};
  if (description.bias >= 0) {
    bindings.push_back({DNNL_ARG_BIAS, description.bias, found.bias_desc()});
  }
  bindings.push_back(
      {DNNL_ARG_DST, static_cast<int>(description.operands.size()) - 1, found.dst_desc()});
  for (const Prepared::Binding& binding : PostBindings(description)) bindings.push_back(binding);
  return {[found] { return Primitive(found); }, found.scratchpad_desc(), std::move(bindings),
          std::nullopt, found.impl_info_str()};
}

memory::desc Bias(const Description& d) {
  return d.bias < 0 ? memory::desc() : LayoutOf(d.operands[d.bias]);
}

/// A convolution, or a deconvolution: oneDNN wants the same of both.
template <typename Primitive>
typename Primitive::primitive_desc DescribeEither(const Description& d, dnnl::algorithm algorithm,
                                                  const dnnl::engine& engine) {
  return {engine,         kInference,           algorithm, Source(d),  Any(d.operands[1]),
          Bias(d),        LayoutOf(d.result()), d.strides, d.dilation, d.padding_low,
          d.padding_high, Attributes(d)};
}

dnnl::convolution_forward::primitive_desc DescribeConvolution(const Description& d,
                                                              const dnnl::engine& engine) {
  return DescribeEither<dnnl::convolution_forward>(d, dnnl::algorithm::convolution_direct, engine);
}

dnnl::deconvolution_forward::primitive_desc DescribeDeconvolution(const Description& d,
                                                                  const dnnl::engine& engine) {
  return DescribeEither<dnnl::deconvolution_forward>(d, dnnl::algorithm::deconvolution_direct,
                                                     engine);
}

dnnl::matmul::primitive_desc DescribeMatmul(const Description& d, const dnnl::engine& engine) {
  return {engine, Source(d), Matrix(d.operands[1]), Bias(d), LayoutOf(d.result()), Attributes(d)};
}

Prepared Convolution(const Description& d, const dnnl::engine& engine) {
  return WithWeights<dnnl::convolution_forward>(d, engine, DescribeConvolution);
}

Prepared Deconvolution(const Description& d, const dnnl::engine& engine) {
  return WithWeights<dnnl::deconvolution_forward>(d, engine, DescribeDeconvolution);
}

Prepared Matmul(const Description& d, const dnnl::engine& engine) {
  return WithWeights<dnnl::matmul>(d, engine, DescribeMatmul);
}

/// A convolution over one dimension as a product of its windows.
Prepared LineConvolution(const Description& d, const dnnl::engine& engine) {
  if (d.operands[1].type != DataType::kFloat32) {
    throw std::invalid_argument("a line_convolution takes float32 tensors alone");
  }
  const Windows windows(d);
  Description product = d;
  product.operands[0] = {{windows.rows(), windows.columns()}, {windows.columns(), 1}};
  Prepared prepared = Matmul(product, engine);
  prepared.windows = windows;
  return prepared;
}

/// A source and a result.
template <typename Primitive>
Prepared Plain(const Description& description, const typename Primitive::primitive_desc& found) {
  Bindings bindings{
      {DNNL_ARG_SRC, 0, found.src_desc()},
      {DNNL_ARG_DST, static_cast<int>(description.operands.size()) - 1, found.dst_desc()}};
  for (const Prepared::Binding& binding : PostBindings(description)) bindings.push_back(binding);
  return {[found] { return Primitive(found); }, found.scratchpad_desc(), std::move(bindings),
          std::nullopt, found.impl_info_str()};
}

Prepared Pooling(const Description& d, const dnnl::engine& engine) {
  using Primitive = dnnl::pooling_forward;
  static const std::map<std::string, dnnl::algorithm> algorithms{
      {"average", dnnl::algorithm::pooling_avg_exclude_padding},
      {"average_with_padding", dnnl::algorithm::pooling_avg_include_padding}};
  const auto algorithm = algorithms.find(d.algorithm);
  if (algorithm == algorithms.end())
    throw std::invalid_argument("there is no oneDNN kernel of pooling by \"" + d.algorithm +
                                "\": compile the model again");
  const Primitive::primitive_desc found(
      engine, kInference, algorithm->second, LayoutOf(d.operands[0]), LayoutOf(d.result()),
      d.strides, d.kernel, d.dilation, d.padding_low, d.padding_high, Attributes(d));
  return Plain<Primitive>(d, found);
}

Prepared LocalResponse(const Description& d, const dnnl::engine& engine) {
  using Primitive = dnnl::lrn_forward;
  const auto number = [&](int k) { return static_cast<float>(d.numbers.at(k)); };
  const Primitive::primitive_desc found(engine, kInference, dnnl::algorithm::lrn_across_channels,
                                        LayoutOf(d.operands[0]), LayoutOf(d.result()),
                                        static_cast<memory::dim>(d.numbers.at(0)), number(1),
                                        number(2), number(3), Attributes(d));
  return Plain<Primitive>(d, found);
}

Prepared LayerNormalization(const Description& d, const dnnl::engine& engine) {
  using Primitive = dnnl::layer_normalization_forward;
  using Flags = dnnl::normalization_flags;
  const Primitive::primitive_desc found(engine, kInference, LayoutOf(d.operands[0]),
                                        LayoutOf(d.result()), static_cast<float>(d.numbers.at(0)),
                                        Flags::use_scale | Flags::use_shift, Attributes(d));
  Prepared prepared = Plain<Primitive>(d, found);
  prepared.bindings.push_back({DNNL_ARG_SCALE, 1, LayoutOf(d.operands[1])});
  prepared.bindings.push_back({DNNL_ARG_SHIFT, 2, LayoutOf(d.operands[2])});
  return prepared;
}

}  // namespace

memory::desc LayoutOf(const Operand& operand) {
  if (!operand.layout.empty()) {
    const std::optional<memory::format_tag> tag = LayoutOfName(operand.layout);
    if (!tag) {
      throw std::invalid_argument("there is no layout \"" + operand.layout +
                                  "\" in this version of oneDNN; compile the model again");
    }
    return memory::desc(operand.dims, TypeOf(operand), *tag);
  }
  return memory::desc(operand.dims, TypeOf(operand), operand.strides);
}

std::int64_t StoredElements(const Operand& operand) {
  if (operand.layout.empty()) return operand.elements();
  return static_cast<std::int64_t>(LayoutOf(operand).get_size()) / BytesOf(operand.type);
}

std::vector<std::string> ImplementationsOf(const Description& d, const dnnl::engine& engine) {
  if (d.primitive == "convolution") {
    return Names<dnnl::convolution_forward>(d, engine, DescribeConvolution);
  }
  if (d.primitive == "deconvolution") {
    return Names<dnnl::deconvolution_forward>(d, engine, DescribeDeconvolution);
  }
  if (d.primitive == "matmul") return Names<dnnl::matmul>(d, engine, DescribeMatmul);
  return {};
}

Prepared Prepare(const Description& description, const dnnl::engine& engine) {
  using Maker = Prepared (*)(const Description&, const dnnl::engine&);
  static const std::map<std::string, Maker> makers{{"convolution", Convolution},
                                                   {"deconvolution", Deconvolution},
                                                   {"matmul", Matmul},
                                                   {"line_convolution", LineConvolution},
                                                   {"pooling", Pooling},
                                                   {"local_response_normalization", LocalResponse},
                                                   {"layer_normalization", LayerNormalization}};
  const auto found = makers.find(description.primitive);
  if (found == makers.end()) {
    throw std::invalid_argument("there is no oneDNN kernel of the kind \"" + description.primitive +
                                "\"; the artifact may be newer than this library");
  }
  return found->second(description, engine);
}

}  // namespace tvm_sched::onednn
