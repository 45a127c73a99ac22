# Finds tvm_ffi in the Python that the library is built for: -DPython_EXECUTABLE=... or the first
# one on the PATH. Defines the target tvm_ffi::shared (headers and libtvm_ffi.so).
find_package(Python 3.10 COMPONENTS Interpreter REQUIRED)

execute_process(
  COMMAND "${Python_EXECUTABLE}" -m tvm_ffi.config --cmakedir
  OUTPUT_VARIABLE tvm_ffi_DIR
  ERROR_VARIABLE tvm_sched_ffi_error
  RESULT_VARIABLE tvm_sched_ffi_status
  OUTPUT_STRIP_TRAILING_WHITESPACE)
if(NOT tvm_sched_ffi_status EQUAL 0)
  message(FATAL_ERROR
    "tvm_ffi was not found by ${Python_EXECUTABLE}: ${tvm_sched_ffi_error}\n"
    "Install it (pip install apache-tvm-ffi) or name another Python: -DPython_EXECUTABLE=...")
endif()

# Not find_package(tvm_ffi): that would keep the folder in the cache, and a build folder must
# survive a change of virtual environment (pip builds in a temporary one each time).
include("${tvm_ffi_DIR}/tvm_ffi-config.cmake")

set(TVM_SCHED_TVM_FFI_LIBRARY "" CACHE FILEPATH "libtvm_ffi.so of another processor, for a cross compiler; the version of Python's")
if(TVM_SCHED_TVM_FFI_LIBRARY)
  set_target_properties(tvm_ffi::shared PROPERTIES IMPORTED_LOCATION "${TVM_SCHED_TVM_FFI_LIBRARY}")
endif()
