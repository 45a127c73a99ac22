// Takes the place of tvm_ffi's function of this name where it is loaded first. An error of TVM has
// a backtrace even if it is caught at once, as some are while TVM is imported, and the first one
// reads the symbols of all libraries of the process: half a second.
#include <tvm/ffi/c_api.h>

extern "C" __attribute__((visibility("default"))) const TVMFFIByteArray* TVMFFIBacktrace(
    const char* /*filename*/, int /*line*/, const char* /*function*/, int /*cross_ffi_boundary*/) {
  static const TVMFFIByteArray none{"", 0};
  return &none;
}
