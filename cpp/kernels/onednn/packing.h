// Parameters in the layouts of primitives, made when a model is compiled.
#ifndef TVM_SCHED_KERNELS_ONEDNN_PACKING_H_
#define TVM_SCHED_KERNELS_ONEDNN_PACKING_H_

#include <oneapi/dnnl/dnnl.hpp>
#include <optional>
#include <string>
#include <vector>

#include "kernels/onednn/description.h"

namespace tvm_sched::onednn {

/// oneDNN's layout of a name, such as "BA16a64b"; nothing where it has none of that name.
std::optional<dnnl::memory::format_tag> LayoutOfName(const std::string& name);

/// Of each operand: the name of the layout in which a kernel on a share of this many cores wants
/// it, if it is a parameter that comes in another one, and the layout has a name; else empty.
std::vector<std::string> PackedLayouts(const Description& description, int cores);

/// Elements of an operand in a layout, with its padding.
std::int64_t PackedElements(const Operand& operand, const std::string& layout);

/// Lay out an operand. Throws dnnl::error.
void Pack(const Operand& operand, const std::string& layout, const void* from, void* to);

}  // namespace tvm_sched::onednn

#endif  // TVM_SCHED_KERNELS_ONEDNN_PACKING_H_
