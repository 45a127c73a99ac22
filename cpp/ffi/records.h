// Registers what Python sees of classes: fields, each under its name in C++, and methods.
#ifndef TVM_SCHED_FFI_RECORDS_H_
#define TVM_SCHED_FFI_RECORDS_H_

#include <tvm/ffi/tvm_ffi.h>

/// The class of a record that Python makes from keyword arguments, and its fields.
#define TVM_SCHED_SETTINGS(Type, ...) \
  tvm::ffi::reflection::ObjectDef<Type>() TVM_SCHED_EACH(TVM_SCHED_KEYWORD, Type, __VA_ARGS__)

/// The class of a record that only C++ makes, and its fields.
#define TVM_SCHED_RESULT(Type, ...)                                        \
  tvm::ffi::reflection::ObjectDef<Type>(tvm::ffi::reflection::init(false)) \
      TVM_SCHED_EACH(TVM_SCHED_FIELD, Type, __VA_ARGS__)

/// A class that only C++ makes, and its methods: (name in Python, name in C++), ...
#define TVM_SCHED_METHODS(Type, ...)                                       \
  tvm::ffi::reflection::ObjectDef<Type>(tvm::ffi::reflection::init(false)) \
      TVM_SCHED_EACH(TVM_SCHED_METHOD, Type, __VA_ARGS__)

#define TVM_SCHED_METHOD(Type, names) \
  .def(TVM_SCHED_PYTHON_NAME names, &Type::TVM_SCHED_CPP_NAME names)
#define TVM_SCHED_PYTHON_NAME(python, cpp) #python
#define TVM_SCHED_CPP_NAME(python, cpp) cpp
#define TVM_SCHED_FIELD(Type, name) .def_ro(#name, &Type::name)
#define TVM_SCHED_KEYWORD(Type, name) \
  .def_ro(#name, &Type::name, tvm::ffi::reflection::kw_only(true))

// Calls a macro for each field or method. The preprocessor expands a macro within itself only when
// it scans the text again: 27 times here, so a class has 27 at most.
#define TVM_SCHED_EACH(macro, Type, ...) TVM_SCHED_SCAN_27(TVM_SCHED_NEXT(macro, Type, __VA_ARGS__))
#define TVM_SCHED_NEXT(macro, Type, name, ...) \
  macro(Type, name) __VA_OPT__(TVM_SCHED_AGAIN TVM_SCHED_EMPTY()()(macro, Type, __VA_ARGS__))
#define TVM_SCHED_AGAIN() TVM_SCHED_NEXT
#define TVM_SCHED_EMPTY()
#define TVM_SCHED_SCAN_27(...) TVM_SCHED_SCAN_9(TVM_SCHED_SCAN_9(TVM_SCHED_SCAN_9(__VA_ARGS__)))
#define TVM_SCHED_SCAN_9(...) TVM_SCHED_SCAN_3(TVM_SCHED_SCAN_3(TVM_SCHED_SCAN_3(__VA_ARGS__)))
#define TVM_SCHED_SCAN_3(...) TVM_SCHED_SCAN(TVM_SCHED_SCAN(TVM_SCHED_SCAN(__VA_ARGS__)))
#define TVM_SCHED_SCAN(...) __VA_ARGS__

#endif  // TVM_SCHED_FFI_RECORDS_H_
