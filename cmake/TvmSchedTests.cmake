# One GoogleTest program of all tests/cpp/*_test.cc. It links the objects, not the library, whose
# symbols are hidden. Run it with ctest, or as build/tvm_sched_tests.
if(CMAKE_CROSSCOMPILING)
  # Debian's package libgtest-dev brings the sources, too.
  add_subdirectory(/usr/src/googletest/googletest googletest EXCLUDE_FROM_ALL)
else()
  find_package(GTest REQUIRED)
endif()

file(GLOB TVM_SCHED_TEST_SOURCES CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/tests/cpp/*_test.cc)
add_executable(tvm_sched_tests ${TVM_SCHED_TEST_SOURCES}
  ${CMAKE_CURRENT_SOURCE_DIR}/cpp/kernels/onednn/row_bands.cc)  # pure, so tested on every processor
target_link_libraries(tvm_sched_tests PRIVATE tvm_sched_objects tvm_sched_bindings GTest::gtest GTest::gtest_main)
if(TARGET tvm_sched_threads)
  target_sources(tvm_sched_tests PRIVATE ${CMAKE_CURRENT_SOURCE_DIR}/tests/cpp/threads/pool_test.cc)
  target_link_libraries(tvm_sched_tests PRIVATE tvm_sched_threads)
endif()
# What is tested is compiled with -O2; of a test, headers are most of the compiler's time.
target_compile_options(tvm_sched_tests PRIVATE -Wall -Wextra $<$<CONFIG:Release>:-O1>)
target_precompile_headers(tvm_sched_tests PRIVATE <gtest/gtest.h> <random> <thread> ${TVM_SCHED_HEADERS})
get_target_property(tvm_sched_ffi_library tvm_ffi::shared IMPORTED_LOCATION)
get_filename_component(tvm_sched_ffi_folder "${tvm_sched_ffi_library}" DIRECTORY)
set_target_properties(tvm_sched_tests PROPERTIES
  BUILD_RPATH "${tvm_sched_ffi_folder};${tvm_sched_tbb_folder}")
add_test(NAME tvm_sched_tests COMMAND tvm_sched_tests)

# A CUDA driver without a GPU, which the tests of that backend open in place of NVIDIA's.
file(GLOB TVM_SCHED_FAKE_CUDA_SOURCES CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/tests/cuda_emulator/fake_driver/*.cc)
add_library(tvm_sched_fake_cuda SHARED ${TVM_SCHED_FAKE_CUDA_SOURCES})
target_link_libraries(tvm_sched_fake_cuda PRIVATE Threads::Threads)
target_compile_options(tvm_sched_fake_cuda PRIVATE -Wall -Wextra -Wno-missing-field-initializers)
if(TVM_SCHED_SANITIZE)
  target_compile_options(tvm_sched_fake_cuda PRIVATE -fsanitize=${TVM_SCHED_SANITIZE})
  target_link_options(tvm_sched_fake_cuda PRIVATE -fsanitize=${TVM_SCHED_SANITIZE})
endif()
add_dependencies(tvm_sched_tests tvm_sched_fake_cuda)
target_include_directories(tvm_sched_tests PRIVATE
  ${CMAKE_CURRENT_SOURCE_DIR}/tests/cpp ${CMAKE_CURRENT_SOURCE_DIR}/tests/cuda_emulator)
target_compile_definitions(tvm_sched_tests PRIVATE
  TVM_SCHED_FAKE_CUDA="$<TARGET_FILE:tvm_sched_fake_cuda>")
