# One GoogleTest program of all tests/cpp/*_test.cc. It links the objects, not the library, whose
# symbols are hidden. Run it with ctest, or as build/tvm_sched_tests.
find_package(GTest REQUIRED)

file(GLOB TVM_SCHED_TEST_SOURCES CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/tests/cpp/*_test.cc)
add_executable(tvm_sched_tests ${TVM_SCHED_TEST_SOURCES})
target_link_libraries(tvm_sched_tests PRIVATE tvm_sched_objects GTest::gtest GTest::gtest_main)
target_compile_options(tvm_sched_tests PRIVATE -Wall -Wextra)
get_target_property(tvm_sched_ffi_library tvm_ffi::shared IMPORTED_LOCATION)
get_filename_component(tvm_sched_ffi_folder "${tvm_sched_ffi_library}" DIRECTORY)
set_target_properties(tvm_sched_tests PROPERTIES BUILD_RPATH "${tvm_sched_ffi_folder}")
add_test(NAME tvm_sched_tests COMMAND tvm_sched_tests)
