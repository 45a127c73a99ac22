# libtvm_sched_onednn: the CPU kernels, built where oneDNN's headers and library are found: in the
# Python environment (pip install onednn-devel-cpu-gomp onednn-cpu-gomp), or in the system.
execute_process(
  COMMAND "${Python_EXECUTABLE}" -c "import sys, sysconfig; print(';'.join(dict.fromkeys([sysconfig.get_path('data'), sys.prefix] + [p.split('/lib/python')[0] for p in sys.path if '/lib/python' in p])))"
  OUTPUT_VARIABLE tvm_sched_prefixes
  OUTPUT_STRIP_TRAILING_WHITESPACE)

set(tvm_sched_includes "")
set(tvm_sched_libraries "")
foreach(prefix IN LISTS tvm_sched_prefixes)
  list(APPEND tvm_sched_includes "${prefix}/include")
  list(APPEND tvm_sched_libraries "${prefix}/lib")
endforeach()

# Not cached: a build folder must survive a change of virtual environment.
unset(TVM_SCHED_DNNL_INCLUDE CACHE)
unset(TVM_SCHED_DNNL_LIBRARY CACHE)
find_path(TVM_SCHED_DNNL_INCLUDE oneapi/dnnl/dnnl.hpp HINTS ${tvm_sched_includes})
find_library(TVM_SCHED_DNNL_LIBRARY NAMES libdnnl.so.3 dnnl HINTS ${tvm_sched_libraries})
find_package(OpenMP COMPONENTS CXX)

if(NOT TVM_SCHED_DNNL_INCLUDE OR NOT TVM_SCHED_DNNL_LIBRARY OR NOT OpenMP_CXX_FOUND)
  message(STATUS "oneDNN was not found: CPU kernels will be TVM's own")
  return()
endif()

file(GLOB TVM_SCHED_ONEDNN_SOURCES CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/cpp/kernels/onednn/*.cc)
add_library(tvm_sched_onednn SHARED ${TVM_SCHED_ONEDNN_SOURCES}
  ${CMAKE_CURRENT_SOURCE_DIR}/cpp/runtime/json_cursor.cc)
target_include_directories(tvm_sched_onednn PRIVATE ${CMAKE_CURRENT_SOURCE_DIR}/cpp ${TVM_SCHED_DNNL_INCLUDE})
target_link_libraries(tvm_sched_onednn PRIVATE tvm_ffi::shared Threads::Threads OpenMP::OpenMP_CXX ${TVM_SCHED_DNNL_LIBRARY})
target_compile_options(tvm_sched_onednn PRIVATE -Wall -Wextra)
get_filename_component(tvm_sched_dnnl_folder "${TVM_SCHED_DNNL_LIBRARY}" DIRECTORY)
set_target_properties(tvm_sched_onednn PROPERTIES
  LIBRARY_OUTPUT_DIRECTORY "${TVM_SCHED_OUTPUT_DIRECTORY}"
  POSITION_INDEPENDENT_CODE ON
  CXX_VISIBILITY_PRESET hidden
  VISIBILITY_INLINES_HIDDEN ON
  # site-packages/tvm_sched/_lib, seen from lib/libdnnl.so.3 of the same environment.
  BUILD_RPATH "$ORIGIN/../../../..;$ORIGIN/../../tvm_ffi/lib;${tvm_sched_dnnl_folder}"
  INSTALL_RPATH "$ORIGIN/../../../..;$ORIGIN/../../tvm_ffi/lib;${tvm_sched_dnnl_folder}"
  BUILD_WITH_INSTALL_RPATH ON)
add_dependencies(tvm_sched tvm_sched_onednn)
