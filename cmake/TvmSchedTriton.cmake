# libtriton_tvm_sched: the backend that Triton Inference Server loads from the folder of a model. The server defines what it calls of
# Triton; the runtime's libraries are opened when a model is loaded. libtvm_ffi.so is copied beside it.
add_library(triton_tvm_sched MODULE ${CMAKE_CURRENT_SOURCE_DIR}/cpp/triton/backend.cc)
target_include_directories(triton_tvm_sched PRIVATE ${CMAKE_CURRENT_SOURCE_DIR}/cpp)
target_link_libraries(triton_tvm_sched PRIVATE tvm_ffi::shared ${CMAKE_DL_LIBS})
target_compile_options(triton_tvm_sched PRIVATE -Wall -Wextra)
if(NOT TVM_SCHED_SANITIZE)
  # It hands tensors over, as bindings do: compiled as they are, with their headers.
  target_compile_options(triton_tvm_sched PRIVATE $<$<CONFIG:Release>:-O1>)
  if(NOT TVM_SCHED_JOIN_SOURCES)
    target_precompile_headers(triton_tvm_sched REUSE_FROM tvm_sched_bindings)
  endif()
endif()
set_target_properties(triton_tvm_sched PROPERTIES
  LIBRARY_OUTPUT_DIRECTORY "${TVM_SCHED_LIBRARY_FOLDER}"
  CXX_VISIBILITY_PRESET hidden
  VISIBILITY_INLINES_HIDDEN ON
  INSTALL_RPATH "$ORIGIN"
  BUILD_WITH_INSTALL_RPATH ON)
install(TARGETS triton_tvm_sched LIBRARY DESTINATION . COMPONENT tvm_sched)
add_dependencies(tvm_sched triton_tvm_sched)
