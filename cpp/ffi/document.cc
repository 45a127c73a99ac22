// The object "tvm_sched.Document": a Python problem, schedule or plan in the attributes of a
// module of TVM.
#include <tvm/ffi/extra/serialization.h>
#include <tvm/ffi/extra/structural_equal.h>
#include <tvm/ffi/extra/structural_hash.h>
#include <tvm/ffi/tvm_ffi.h>

#include <mutex>
#include <optional>
#include <utility>

namespace tvm_sched {
namespace {

namespace ffi = tvm::ffi;

/// An object, and its JSON document where the module is saved, compared or hashed.
///
/// The document is made when it is first asked for. What was loaded from a file has the document
/// alone, until somebody decodes it and says so (`SetObject`). Python's half is `Document` in
/// python/tvm_sched/relax/ir/json_document.py, with the same names.
class DocumentObj : public ffi::Object {
 public:
  DocumentObj(ffi::Any object, ffi::Function encode)
      : object_(std::move(object)), encode_(std::move(encode)) {}
  explicit DocumentObj(ffi::String text) : text_(std::move(text)) {}

  ffi::String Text() const {
    std::lock_guard lock(mutex_);
    if (!text_) text_ = (*encode_)(object_).cast<ffi::String>();
    return *text_;
  }
  /// None where nobody has decoded the document yet.
  ffi::Any Object() const {
    std::lock_guard lock(mutex_);
    return object_;
  }
  void SetObject(ffi::Any object) const {
    std::lock_guard lock(mutex_);
    object_ = std::move(object);
  }

  static constexpr TVMFFISEqHashKind _type_s_eq_hash_kind = kTVMFFISEqHashKindTreeNode;
  static constexpr bool _type_mutable = true;
  TVM_FFI_DECLARE_OBJECT_INFO_FINAL("tvm_sched.Document", DocumentObj, ffi::Object);

 private:
  mutable std::recursive_mutex mutex_;  // the encoder may look at the document
  mutable ffi::Any object_;
  mutable std::optional<ffi::String> text_;
  const std::optional<ffi::Function> encode_;
};

using Compare = ffi::TypedFunction<bool(ffi::AnyView, ffi::AnyView, int, ffi::AnyView)>;
using Hash = ffi::TypedFunction<std::int64_t(ffi::AnyView, std::int64_t, int)>;

TVM_FFI_STATIC_INIT_BLOCK() {
  namespace refl = ffi::reflection;
  refl::ObjectDef<DocumentObj>(refl::init(false))
      .def_static("make",
                  [](ffi::Any object, ffi::Function encode) {
                    return ffi::ObjectRef(ffi::make_object<DocumentObj>(object, encode));
                  })
      .def("text", &DocumentObj::Text)
      .def("object", &DocumentObj::Object)
      .def("set_object", &DocumentObj::SetObject);
  refl::TypeAttrDef<DocumentObj>()
      .attr(ffi::type_attr::kDataToJson,
            ffi::TypedFunction<ffi::Any(ffi::AnyView)>([](ffi::AnyView document) -> ffi::Any {
              return document.cast<const DocumentObj*>()->Text();
            }))
      .attr(ffi::type_attr::kDataFromJson,
            ffi::TypedFunction<ffi::Any(ffi::AnyView)>([](ffi::AnyView text) -> ffi::Any {
              return ffi::ObjectRef(ffi::make_object<DocumentObj>(text.cast<ffi::String>()));
            }))
      .attr(ffi::type_attr::kSEqual,
            ffi::TypedFunction<bool(const ffi::Object*, const ffi::Object*, const Compare&)>(
                [](const ffi::Object* a, const ffi::Object* b, const Compare&) {
                  return static_cast<const DocumentObj*>(a)->Text() ==
                         static_cast<const DocumentObj*>(b)->Text();
                }))
      .attr(ffi::type_attr::kSHash,
            ffi::TypedFunction<std::int64_t(const ffi::Object*, std::int64_t, const Hash&)>(
                [](const ffi::Object* document, std::int64_t hash, const Hash& combine) {
                  return combine(static_cast<const DocumentObj*>(document)->Text(), hash, 0);
                }));
}

}  // namespace
}  // namespace tvm_sched
