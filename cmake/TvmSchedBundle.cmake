# What the runtime's wheel brings along, so that it runs alone: `cmake --install build --component bundled --prefix FOLDER`.
#   TVM's runtime   the virtual machine and what generated kernels call, out of the package apache-tvm
#   oneDNN          where it was found
# and under which licenses.
execute_process(
  COMMAND "${Python_EXECUTABLE}" -c "from importlib.util import find_spec; found = find_spec('tvm'); print(found.submodule_search_locations[0] if found else '')"
  OUTPUT_VARIABLE tvm_sched_tvm
  OUTPUT_STRIP_TRAILING_WHITESPACE)

if(tvm_sched_tvm)
  file(GLOB tvm_sched_licenses "${tvm_sched_tvm}/../apache_tvm-*.dist-info/licenses/*")
  install(FILES "${tvm_sched_tvm}/lib/libtvm_runtime.so" "${tvm_sched_tvm}/lib/libtvm_runtime_extra.so"
    DESTINATION . COMPONENT bundled)
  install(FILES ${tvm_sched_licenses} DESTINATION licenses/apache-tvm COMPONENT bundled)
else()
  install(CODE "message(FATAL_ERROR \"TVM was not found by ${Python_EXECUTABLE}: install apache-tvm, whose runtime library is bundled\")"
    COMPONENT bundled)
endif()

if(TARGET tvm_sched_onednn)
  cmake_path(GET TVM_SCHED_DNNL_LIBRARY PARENT_PATH tvm_sched_dnnl_folder)
  file(GLOB tvm_sched_licenses "${tvm_sched_dnnl_folder}/../share/doc/onednn/*")
  # The file, not the link to it that a system's package may have.
  file(REAL_PATH "${TVM_SCHED_DNNL_LIBRARY}" tvm_sched_dnnl)
  install(FILES "${tvm_sched_dnnl}" DESTINATION . RENAME libdnnl.so.3 COMPONENT bundled)
  install(FILES ${tvm_sched_licenses} DESTINATION licenses/onednn COMPONENT bundled)
endif()
