# Sources of one folder are compiled together, which saves a fifth of the compiler's time: what they include, and the templates that
# they share, are compiled once. A file that is edited after the first configuration is compiled on its own from then on.
if(CMAKE_BUILD_TYPE STREQUAL "Release" AND NOT TVM_SCHED_SANITIZE)
  set(tvm_sched_join ON)
else()
  set(tvm_sched_join OFF)  # sanitizers and coverage show that each file also compiles alone
endif()
option(TVM_SCHED_JOIN_SOURCES "Compile sources of one folder together" ${tvm_sched_join})
set(TVM_SCHED_JOINED 6)  # with more, a core has nothing to do at the end

set(TVM_SCHED_FIRST_CONFIGURED "${CMAKE_CURRENT_BINARY_DIR}/first_configured")
if(NOT EXISTS "${TVM_SCHED_FIRST_CONFIGURED}")
  file(TOUCH "${TVM_SCHED_FIRST_CONFIGURED}")
endif()

# tvm_sched_join_sources(TARGET HEADER...): HEADERs are precompiled where the sources are not joined.
function(tvm_sched_join_sources target)
  if(NOT TVM_SCHED_JOIN_SOURCES)
    target_precompile_headers(${target} PRIVATE ${ARGN})
    return()
  endif()
  get_target_property(sources ${target} SOURCES)
  foreach(source IN LISTS sources)
    get_source_file_property(options "${source}" COMPILE_OPTIONS)
    file(STRINGS "${source}" instructions REGEX "#pragma GCC|__attribute__\\(\\(target" LIMIT_COUNT 1)
    get_source_file_property(apart "${source}" SKIP_UNITY_BUILD_INCLUSION)
    if(options OR instructions OR apart OR "${source}" IS_NEWER_THAN "${TVM_SCHED_FIRST_CONFIGURED}")
      continue()  # code for one kind of processor stays apart from other code
    endif()
    cmake_path(GET source PARENT_PATH folder)
    cmake_path(RELATIVE_PATH folder BASE_DIRECTORY "${CMAKE_CURRENT_SOURCE_DIR}/cpp" OUTPUT_VARIABLE name)
    string(REPLACE "/" "_" name "${name}")
    list(APPEND files_of_${name} "${source}")
    list(LENGTH files_of_${name} count)
    math(EXPR group "(${count} - 1) / ${TVM_SCHED_JOINED}")
    set_source_files_properties("${source}" PROPERTIES UNITY_GROUP "${name}_${group}")
  endforeach()
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
endfunction()
