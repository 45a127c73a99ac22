// Registers the pool's functions with libtvm_sched, which opens this library by name.
#include <tvm/ffi/function.h>
#include <tvm/ffi/reflection/registry.h>

#include "threads/pool.h"

TVM_FFI_STATIC_INIT_BLOCK() {
  tvm::ffi::reflection::GlobalDef().def(
      "tvm_sched.threads.loop", [] { return reinterpret_cast<void*>(&tvm_sched::threads::Loop); });
}
