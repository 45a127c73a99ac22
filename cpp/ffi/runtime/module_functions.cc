// The functions of a module beside its runs: parameters, states, options, and what it says of
// itself.
#include <tvm/ffi/extra/json.h>

#include <algorithm>
#include <utility>

#include "ffi/runtime/module.h"
#include "ffi/runtime/prepare.h"

namespace tvm_sched::runtime {

namespace ffi = tvm::ffi;
using ffi::Tensor;

namespace {

void ExpectArguments(const ffi::PackedArgs& args, int count, const char* signature) {
  if (args.size() == count) return;
  TVM_FFI_THROW(TypeError) << signature << " takes " << count << " arguments, got " << args.size();
}

}  // namespace

void ScheduledModule::LoadParameters(ffi::PackedArgs args, ffi::Any* result) {
  ExpectArguments(args, 1, "load_parameters(path)");
  *result = parameters_->Load(args[0].cast<ffi::String>());
  AnnounceParameters();
}

void ScheduledModule::SetParameter(ffi::PackedArgs args, ffi::Any*) {
  ExpectArguments(args, 2, "set_parameter(name, tensor)");
  parameters_->Set(args[0].cast<ffi::String>(), args[1].cast<Tensor>());
  AnnounceParameters();
}

void ScheduledModule::GetState(ffi::PackedArgs args, ffi::Any* result) {
  ExpectArguments(args, 1, "get_state(name)");
  *result = AloneWithStates([&] { return states_.Get(args[0].cast<ffi::String>()); });
}

void ScheduledModule::SetState(ffi::PackedArgs args, ffi::Any*) {
  ExpectArguments(args, 2, "set_state(name, tensor)");
  AloneWithStates([&] {
    states_.Set(args[0].cast<ffi::String>(), args[1].cast<Tensor>());
    return true;
  });
}

void ScheduledModule::AnnounceParameters() const {
  for (const ffi::Any& import : imports()) {
    auto module = import.cast<ffi::Module>();
    if (auto function = module->GetFunction("tvm_sched.parameters_changed")) (*function)();
  }
}

void ScheduledModule::Prepare(ffi::PackedArgs args, ffi::Any*) {
  ExpectArguments(args, 0, "prepare()");
  CheckProcessor();
  for (std::size_t plan = 0; plan < plans_.size(); ++plan) PrepareKernels(plan);
}

void ScheduledModule::PrepareKernels(std::size_t plan) {
  const bool known = prepared_[plan] == parameters_->version();
  if (known || plans_[plan]->backend != BackendKind::kCpu) return;
  if (!parameters_->Complete(*plans_[plan])) return;
  const ParameterInputs inputs = ParametersOfKernels(*plans_[plan], *parameters_);
  for (const ffi::Any& import : imports()) {
    auto module = import.cast<ffi::Module>();
    if (auto function = module->GetFunction("tvm_sched.prepare")) (*function)(inputs);
  }
  prepared_[plan] = parameters_->version();
}

void ScheduledModule::Configure(ffi::PackedArgs args, ffi::Any*) {
  ExpectArguments(args, 1, "configure(options_json)");
  SetOptions(ReadOptions(JsonCursor::Parse(args[0].cast<ffi::String>(), "options"), options_));
}

void ScheduledModule::SetOptions(RunOptions options) {
  if (const auto* names = std::get_if<std::vector<std::string>>(&options.resident)) {
    for (const std::string& name : *names) {
      if (!parameters_->Has(name)) {
        TVM_FFI_THROW(ValueError) << "options.resident: there is no parameter \"" << name << "\"";
      }
    }
  }
  const bool emulated = std::any_of(plans_.begin(), plans_.end(), [](const auto& plan) {
    return plan->backend == BackendKind::kEmulated;
  });
  if (options.times_only && !emulated) {
    TVM_FFI_THROW(ValueError) << "options.times_only is set, which is for emulated devices; these "
                                 "are real, and take their times by computing";
  }
  if (options.graph && options.in_turn) {
    TVM_FFI_THROW(ValueError)
        << "options.graph and options.in_turn are set: a captured graph waits "
           "for no other run, so that one of them is allowed";
  }
  if (options.instances > 1 && !states_.empty()) {
    TVM_FFI_THROW(ValueError)
        << "options.instances is " << options.instances
        << ", and the model has states: each run goes on from the one before it, so 1 is allowed";
  }
  std::vector<std::vector<bool>> skipped;
  Instance::Elsewhere elsewhere;
  for (const auto& plan : plans_) {
    skipped.push_back(StepsSkippedWhenWarm(*plan, options.resident));
    if (options.in_turn) elsewhere.push_back(BroughtBy(*plan, skipped.back()));
  }
  elsewhere_ = std::move(elsewhere);
  options_ = std::move(options);
  skipped_ = std::move(skipped);
}

void ScheduledModule::Timeline(ffi::PackedArgs args, ffi::Any* result) {
  ExpectArguments(args, 0, "timeline()");
  if (!last_run_ || !last_run_->traced) {
    TVM_FFI_THROW(RuntimeError) << "no run was traced: call configure('{\"trace\": true}'), then "
                                   "main, then timeline()";
  }
  *result = WriteTimeline(*last_run_);
}

void ScheduledModule::Latency(ffi::PackedArgs args, ffi::Any* result) {
  ExpectArguments(args, 0, "latency()");
  if (!last_run_) {
    TVM_FFI_THROW(RuntimeError) << "nothing has run, or the last run failed: call main first";
  }
  *result = static_cast<std::int64_t>(last_run_->record.latency.count());
}

void ScheduledModule::Info(ffi::PackedArgs args, ffi::Any* result) {
  ExpectArguments(args, 0, "info()");
  *result = ffi::String(metadata_json_);
}

void ScheduledModule::Processor(ffi::PackedArgs args, ffi::Any* result) {
  ExpectArguments(args, 0, "processor()");
  *result = ffi::String(level_.name);
}

void ScheduledModule::Plans(ffi::PackedArgs args, ffi::Any* result) {
  ExpectArguments(args, 0, "plans()");
  *result = ffi::String(plans_json_);
}

void ScheduledModule::Parameters(ffi::PackedArgs args, ffi::Any* result) {
  ExpectArguments(args, 0, "parameters()");
  *result = ffi::String(parameters_->Describe());
}

}  // namespace tvm_sched::runtime
