# The libraries beside libtvm_sched that need what pip installs (onednn-devel-cpu-tbb, tbb-devel), built where it is found in
# the Python environment or in the system:
#   libtvm_sched_threads  the threads that all kernels share, TBB's
#   libtvm_sched_onednn   the CPU kernels
#   libimf, libintlc      what onednn-cpu-tbb takes from Intel's compiler runtime, for where that is not installed
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
foreach(found TVM_SCHED_DNNL_INCLUDE TVM_SCHED_DNNL_LIBRARY TVM_SCHED_TBB_INCLUDE TVM_SCHED_TBB_LIBRARY)
  unset(${found} CACHE)
endforeach()
find_path(TVM_SCHED_TBB_INCLUDE oneapi/tbb/task_arena.h HINTS ${tvm_sched_includes})
find_library(TVM_SCHED_TBB_LIBRARY NAMES libtbb.so.12 tbb HINTS ${tvm_sched_libraries})
find_path(TVM_SCHED_DNNL_INCLUDE oneapi/dnnl/dnnl.hpp HINTS ${tvm_sched_includes})
find_library(TVM_SCHED_DNNL_LIBRARY NAMES libdnnl.so.3 dnnl HINTS ${tvm_sched_libraries})

# A library of the package; DEPENDENCY is the file that it stands on.
function(tvm_sched_add_kernel_library name dependency)
  cmake_path(GET dependency PARENT_PATH folder)
  # site-packages/tvm_sched_runtime/_lib, seen from the folder lib of the same environment.
  set(rpath "$ORIGIN" "$ORIGIN/../../../.." "$ORIGIN/../../tvm_ffi/lib")
  target_compile_options(${name} PRIVATE -Wall -Wextra)
  set_target_properties(${name} PROPERTIES
    LIBRARY_OUTPUT_DIRECTORY "${TVM_SCHED_LIBRARY_FOLDER}"
    POSITION_INDEPENDENT_CODE ON
    CXX_VISIBILITY_PRESET hidden
    VISIBILITY_INLINES_HIDDEN ON
    BUILD_RPATH "${rpath};${folder}"
    INSTALL_RPATH "${rpath}")
  install(TARGETS ${name} LIBRARY DESTINATION . COMPONENT tvm_sched)
  add_dependencies(tvm_sched ${name})
endfunction()

if(NOT TVM_SCHED_TBB_INCLUDE OR NOT TVM_SCHED_TBB_LIBRARY)
  message(STATUS "TBB was not found: CPU kernels will be TVM's own, and so their threads")
  return()
endif()

add_library(tvm_sched_threads SHARED
  ${CMAKE_CURRENT_SOURCE_DIR}/cpp/threads/no_fork.cc
  ${CMAKE_CURRENT_SOURCE_DIR}/cpp/threads/pool.cc
  ${CMAKE_CURRENT_SOURCE_DIR}/cpp/threads/register.cc
  ${CMAKE_CURRENT_SOURCE_DIR}/cpp/threads/waiting.cc)
target_include_directories(tvm_sched_threads PUBLIC ${CMAKE_CURRENT_SOURCE_DIR}/cpp)
target_include_directories(tvm_sched_threads SYSTEM PRIVATE ${TVM_SCHED_TBB_INCLUDE})
target_link_libraries(tvm_sched_threads PRIVATE tvm_ffi::shared Threads::Threads ${TVM_SCHED_TBB_LIBRARY})
target_link_options(tvm_sched_threads PRIVATE -Wl,-z,nodelete)  # libtbb calls it, see cpp/threads/waiting.h
cmake_path(GET TVM_SCHED_TBB_LIBRARY PARENT_PATH tvm_sched_tbb_folder)
tvm_sched_add_kernel_library(tvm_sched_threads "${TVM_SCHED_TBB_LIBRARY}")
if(TVM_SCHED_SANITIZE STREQUAL "thread")
  # Not built with the sanitizer, as TBB is not, whose headers it compiles: it says itself what is ordered.
  target_compile_definitions(tvm_sched_threads PRIVATE TVM_SCHED_THREAD_SANITIZER)
  target_link_options(tvm_sched_threads PRIVATE -fsanitize=thread)
endif()

if(TVM_SCHED_DNNL_INCLUDE)
  file(STRINGS "${TVM_SCHED_DNNL_INCLUDE}/oneapi/dnnl/dnnl_config.h" tvm_sched_dnnl_runtime
    REGEX "^#define DNNL_CPU_RUNTIME DNNL_RUNTIME_TBB")
endif()
if(NOT TVM_SCHED_DNNL_LIBRARY OR NOT tvm_sched_dnnl_runtime)
  message(STATUS "oneDNN with TBB's threads was not found: CPU kernels will be TVM's own")
  return()
endif()

# Both have the names of Intel's, by which the dynamic loader knows them. Nothing of libm is called in libimf itself.
foreach(name libimf libintlc)
  add_library(${name} SHARED ${CMAKE_CURRENT_SOURCE_DIR}/cpp/kernels/intel_runtime/${name}.cc)
  tvm_sched_add_kernel_library(${name} "${TVM_SCHED_DNNL_LIBRARY}")
  set_target_properties(${name} PROPERTIES PREFIX "")
endforeach()
target_link_options(libimf PRIVATE -Wl,--no-as-needed)
target_link_libraries(libimf PRIVATE m)
set_target_properties(libintlc PROPERTIES SUFFIX ".so.5")

file(GLOB TVM_SCHED_ONEDNN_SOURCES CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/cpp/kernels/onednn/*.cc)
file(GLOB TVM_SCHED_INTEGER_SOURCES CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/cpp/kernels/integers/*.cc)
add_library(tvm_sched_onednn SHARED ${TVM_SCHED_ONEDNN_SOURCES} ${TVM_SCHED_INTEGER_SOURCES}
  ${CMAKE_CURRENT_SOURCE_DIR}/cpp/runtime/cache_lines.cc
  ${CMAKE_CURRENT_SOURCE_DIR}/cpp/runtime/cores.cc
  ${CMAKE_CURRENT_SOURCE_DIR}/cpp/runtime/json_cursor.cc)
target_compile_options(tvm_sched_onednn PRIVATE -fopenmp-simd)
target_precompile_headers(tvm_sched_onednn PRIVATE ${TVM_SCHED_HEADERS} <oneapi/dnnl/dnnl.hpp>)
# GCC takes options such as -ffp-contract from the precompiled headers, not from a source file's own command.
set_source_files_properties(${TVM_SCHED_INTEGER_SOURCES} PROPERTIES SKIP_PRECOMPILE_HEADERS ON)
# Each operation rounds, as the operators of a model do.
set_source_files_properties(
  ${CMAKE_CURRENT_SOURCE_DIR}/cpp/kernels/integers/avx2.cc ${CMAKE_CURRENT_SOURCE_DIR}/cpp/kernels/integers/avx512vnni.cc
  ${CMAKE_CURRENT_SOURCE_DIR}/cpp/kernels/integers/avx512vbmi.cc
  ${CMAKE_CURRENT_SOURCE_DIR}/cpp/kernels/integers/portable.cc
  ${CMAKE_CURRENT_SOURCE_DIR}/cpp/kernels/integers/sse41.cc PROPERTIES COMPILE_OPTIONS -ffp-contract=off)
target_include_directories(tvm_sched_onednn PRIVATE ${CMAKE_CURRENT_SOURCE_DIR}/cpp)
target_include_directories(tvm_sched_onednn SYSTEM PRIVATE ${TVM_SCHED_DNNL_INCLUDE})
target_link_libraries(tvm_sched_onednn PRIVATE tvm_ffi::shared tvm_sched_threads Threads::Threads ${TVM_SCHED_DNNL_LIBRARY})
# What oneDNN itself needs is opened before it, see cpp/ffi/kernel_libraries.cc.
target_link_options(tvm_sched_onednn PRIVATE -Wl,--allow-shlib-undefined)
tvm_sched_add_kernel_library(tvm_sched_onednn "${TVM_SCHED_DNNL_LIBRARY}")
if(TVM_SCHED_SANITIZE)
  target_compile_options(tvm_sched_onednn PRIVATE -fsanitize=${TVM_SCHED_SANITIZE})
  target_link_options(tvm_sched_onednn PRIVATE -fsanitize=${TVM_SCHED_SANITIZE})
endif()
