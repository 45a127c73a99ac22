#include "kernels/onednn/packing.h"

#include <oneapi/dnnl/dnnl_debug.h>

#include "kernels/onednn/kernel.h"
#include "kernels/onednn/matrix_vector.h"
#include "kernels/onednn/own_kernel.h"
#include "threads/pool.h"

namespace tvm_sched::onednn {

using dnnl::memory;

namespace {

constexpr int kFirst = static_cast<int>(memory::format_tag::any) + 1;
constexpr int kLast = static_cast<int>(memory::format_tag::format_tag_last);

std::string NameOfTag(int tag) { return dnnl_fmt_tag2str(static_cast<dnnl_format_tag_t>(tag)); }

memory::desc Laid(const Operand& operand, memory::format_tag tag) {
  return memory::desc(operand.dims, LayoutOf(operand).get_data_type(), tag, /*allow_empty=*/true);
}

std::string NameOf(const Operand& operand, const memory::desc& layout) {
  Operand plain = operand;
  plain.layout.clear();
  if (layout == LayoutOf(plain)) return {};
  for (int tag = kFirst; tag < kLast; ++tag) {
    const memory::desc laid = Laid(plain, static_cast<memory::format_tag>(tag));
    // Empty: of another number of dimensions. Of names for one layout the first is taken. Where
    // dimensions are no multiples of its blocks, both have the same padding.
    if (laid && laid == layout) return NameOfTag(tag);
  }
  return {};
}

}  // namespace

std::optional<memory::format_tag> LayoutOfName(const std::string& name) {
  for (int tag = kFirst; tag < kLast; ++tag) {
    if (NameOfTag(tag) == name) return static_cast<memory::format_tag>(tag);
  }
  return std::nullopt;
}

std::vector<std::string> PackedLayouts(const Description& description, int cores) {
  std::vector<std::string> layouts(description.operands.size());
  if (IsOwn(description.primitive)) return layouts;
  const auto note = [&](int operand, const memory::desc& expected) {
    const Operand& given = description.operands[operand];
    if (given.parameter && given.offset == 0 && given.within == 0) {
      layouts[operand] = NameOf(given, expected);
    }
  };
  const int threads = description.cores.Of(cores);
  if (MatrixVector::Computes(description)) {
    note(1, MatrixVector(description, threads).weights());
    return layouts;
  }
  threads::Enter(threads, [&] {
    for (const Prepared::Binding& binding : Prepare(description, threads).bindings) {
      note(binding.operand, binding.expected);
    }
  });
  return layouts;
}

std::int64_t PackedElements(const Operand& operand, const std::string& layout) {
  Operand packed = operand;
  packed.layout = layout;
  return StoredElements(packed);
}

void Pack(const Operand& operand, const std::string& layout, const void* from, void* to) {
  Operand packed = operand;
  packed.layout = layout;
  memory source(LayoutOf(operand), Engine(), const_cast<void*>(from));
  memory target(LayoutOf(packed), Engine(), to);
  dnnl::stream stream(Engine());
  threads::Enter(1, [&] {
    dnnl::reorder(source, target).execute(stream, source, target);
    stream.wait();
  });
}

}  // namespace tvm_sched::onednn
