# The targets: tvm_sched_objects and tvm_sched_bindings (every source file, compiled once; the C++ tests link both) and
# tvm_sched (the shared library, written straight into the Python package).
set(TVM_SCHED_LIBRARY_FOLDER "${CMAKE_CURRENT_SOURCE_DIR}/python/tvm_sched_runtime/_lib"
    CACHE PATH "Where libtvm_sched.so is written")

file(GLOB_RECURSE TVM_SCHED_SOURCES CONFIGURE_DEPENDS
  ${CMAKE_CURRENT_SOURCE_DIR}/cpp/cluster/*.cc
  ${CMAKE_CURRENT_SOURCE_DIR}/cpp/search/*.cc
  ${CMAKE_CURRENT_SOURCE_DIR}/cpp/simulate/*.cc
  ${CMAKE_CURRENT_SOURCE_DIR}/cpp/runtime/*.cc
  ${CMAKE_CURRENT_SOURCE_DIR}/cpp/ffi/*.cc
  ${CMAKE_CURRENT_SOURCE_DIR}/cpp/kernels/cuda/*.cc
  ${CMAKE_CURRENT_SOURCE_DIR}/cpp/kernels/language/*.cc)

# `make demo` builds the library without the parts that the demonstration does not call; the next full build adds them and compiles
# nothing else anew. Each of them is reached through functions that it registers, and no other part refers to it.
option(TVM_SCHED_ALL_PARTS "Build kernels of language models, searches for clusters, and Triton's backend" ON)
set(TVM_SCHED_PARTS cpp/cluster/ cpp/ffi/cluster.cc cpp/kernels/language/)
if(NOT TVM_SCHED_ALL_PARTS)
  foreach(part IN LISTS TVM_SCHED_PARTS)
    list(FILTER TVM_SCHED_SOURCES EXCLUDE REGEX "/${part}")
  endforeach()
endif()
# Otherwise the other sources of its folder would be joined in other groups without it.
set_source_files_properties(${CMAKE_CURRENT_SOURCE_DIR}/cpp/ffi/cluster.cc PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)

find_package(Threads REQUIRED)

# Bindings and the host side of CUDA kernels are mostly tvm_ffi's templates, which run once for each load or call. With -O1 GCC
# takes half of the time that it takes with -O2. What computes is compiled with -O2.
set(TVM_SCHED_BINDING_SOURCES ${TVM_SCHED_SOURCES})
list(FILTER TVM_SCHED_BINDING_SOURCES INCLUDE REGEX "/cpp/(ffi|kernels/cuda)/")
set(TVM_SCHED_OBJECT_SOURCES ${TVM_SCHED_SOURCES})
list(REMOVE_ITEM TVM_SCHED_OBJECT_SOURCES ${TVM_SCHED_BINDING_SOURCES})

# The headers that most files include, compiled once for each target; where sources are joined, that would gain nothing.
set(TVM_SCHED_HEADERS
  <tvm/ffi/tvm_ffi.h> <tvm/ffi/extra/module.h> <tvm/ffi/reflection/registry.h> <algorithm> <functional> <map> <memory> <mutex>
  <optional> <queue> <set> <span> <string> <unordered_map> <vector>)

add_library(tvm_sched_objects OBJECT ${TVM_SCHED_OBJECT_SOURCES})
add_library(tvm_sched_bindings OBJECT ${TVM_SCHED_BINDING_SOURCES})
foreach(objects tvm_sched_objects tvm_sched_bindings)
  target_include_directories(${objects} PUBLIC ${CMAKE_CURRENT_SOURCE_DIR}/cpp)
  target_link_libraries(${objects} PUBLIC tvm_ffi::shared Threads::Threads)
  target_compile_options(${objects} PRIVATE -Wall -Wextra)
  set_target_properties(${objects} PROPERTIES
    POSITION_INDEPENDENT_CODE ON
    CXX_VISIBILITY_PRESET hidden
    VISIBILITY_INLINES_HIDDEN ON)
  tvm_sched_join_sources(${objects} ${TVM_SCHED_HEADERS})
  if(TVM_SCHED_SANITIZE)
    target_compile_options(${objects} PUBLIC -fsanitize=${TVM_SCHED_SANITIZE})
    target_link_options(${objects} PUBLIC -fsanitize=${TVM_SCHED_SANITIZE})
    if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND TVM_SCHED_SANITIZE STREQUAL "thread")
      # GCC warns thousands of times that ThreadSanitizer does not see the fences of tvm_ffi's reference counts.
      target_compile_options(${objects} PUBLIC -Wno-tsan)
    endif()
  endif()
endforeach()
if(TVM_SCHED_SANITIZE)
  # tvm_ffi's templates under both sanitizers take GCC three times as long with -O1 as with -O0; what is checked is the same.
  target_compile_options(tvm_sched_bindings PRIVATE -O0)
else()
  target_compile_options(tvm_sched_bindings PRIVATE $<$<CONFIG:Release>:-O1>)
  # tvm_ffi has its functions inlined always, with the messages of their errors: a quarter of the compiler's time. Where this word
  # is another one, GCC decides. Headers of the system write it with underscores.
  target_compile_definitions(tvm_sched_bindings PRIVATE $<$<CONFIG:Release>:always_inline=unused>)
endif()

add_library(tvm_sched SHARED)
# In this order: of an inline function that both have, the linker takes the first, which is compiled with -O2.
target_link_libraries(tvm_sched PRIVATE tvm_sched_objects tvm_sched_bindings)
if(NOT TVM_SCHED_SANITIZE)
  # What no library defines is told when it is linked, not when it is called. A sanitizer's functions are in the program.
  target_link_options(tvm_sched PRIVATE -Wl,--no-undefined)
endif()
set_target_properties(tvm_sched PROPERTIES
  LINKER_LANGUAGE CXX
  LIBRARY_OUTPUT_DIRECTORY "${TVM_SCHED_LIBRARY_FOLDER}"
  # Python has loaded libtvm_ffi.so before this library, and the loader takes that one by its
  # soname. The rpath serves a C++ program that loads a wheel's library on its own.
  BUILD_RPATH "$ORIGIN/../../tvm_ffi/lib"
  INSTALL_RPATH "$ORIGIN/../../tvm_ffi/lib"
  BUILD_WITH_INSTALL_RPATH ON)
install(TARGETS tvm_sched LIBRARY DESTINATION . COMPONENT tvm_sched)

# Loaded before tvm_ffi by the command line. It defines a function of tvm_ffi, so it is not linked to it.
add_library(tvm_sched_no_backtrace SHARED ${CMAKE_CURRENT_SOURCE_DIR}/cpp/no_backtrace/no_backtrace.cc)
target_include_directories(tvm_sched_no_backtrace SYSTEM PRIVATE
  $<TARGET_PROPERTY:tvm_ffi::shared,INTERFACE_INCLUDE_DIRECTORIES>)
set_target_properties(tvm_sched_no_backtrace PROPERTIES LIBRARY_OUTPUT_DIRECTORY "${TVM_SCHED_LIBRARY_FOLDER}")
install(TARGETS tvm_sched_no_backtrace LIBRARY DESTINATION . COMPONENT tvm_sched)
add_dependencies(tvm_sched tvm_sched_no_backtrace)
