#include "kernels/cuda/call.h"

#include <dlpack/dlpack.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/extra/c_env_api.h>

namespace tvm_sched::cuda_kernels {

using runtime::cuda::Check;
using runtime::cuda::Driver;

CallOnGpu::CallOnGpu(const std::string& name, int count, const tvm::ffi::PackedArgs& args) {
  if (args.size() != count) {
    TVM_FFI_THROW(TypeError) << "the kernel \"" << name << "\" takes " << count << " tensors, got "
                             << args.size();
  }
  data.reserve(count);
  for (int i = 0; i < count; ++i) {
    const auto tensor = args[i].cast<DLTensor*>();
    if (tensor->device.device_type != kDLCUDA) {
      TVM_FFI_THROW(ValueError) << "argument " << i << " of the kernel \"" << name
                                << "\" is in the memory of no GPU";
    }
    if (i == 0) {
      stream =
          static_cast<runtime::cuda::Stream>(TVMFFIEnvGetStream(kDLCUDA, tensor->device.device_id));
    }
    data.push_back(static_cast<char*>(tensor->data) + tensor->byte_offset);
  }
  Check(Driver().ContextGetCurrent(&context), "asking for the context failed");
}

std::shared_ptr<std::byte> AllocateWorkspace(std::size_t size, const std::string& name) {
  runtime::cuda::Context context = nullptr;
  Check(Driver().ContextGetCurrent(&context), "asking for the context failed");
  runtime::cuda::DevicePointer address = 0;
  Check(Driver().MemoryAllocate(&address, size),
        std::to_string(size) + " bytes of workspace for the kernel \"" + name + "\"");
  return {reinterpret_cast<std::byte*>(address), [context](std::byte* memory) {
            try {
              Driver().ContextSetCurrent(context);
              Driver().MemoryFree(reinterpret_cast<runtime::cuda::DevicePointer>(memory));
            } catch (const runtime::cuda::CudaError&) {
              // A forked child: the memory is the parent's.
            }
          }};
}

}  // namespace tvm_sched::cuda_kernels
