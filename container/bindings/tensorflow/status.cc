// SPDX-License-Identifier: Apache-2.0
#include "status.h"

#include <new>
#include <string>

#include "smdist/errors.h"

namespace smdist::tensorflow_binding {
namespace {

constexpr const char* kAsMany =
    "Give all ranks the same number of batches, by steps_per_epoch or dataset.take()";

// Adds a hint on the most frequent cause of a rank that left: its dataset has fewer batches. The
// core cannot know that.
std::string with_hint(const Error& error) {
  const std::string text = error.what();
  const Fault* const fault = error.fault();
  if (fault == nullptr || fault->kind != FaultKind::kLeft) return text;
  return text + ". That rank ended without an exception; perhaps it had fewer batches. " + kAsMany;
}

}  // namespace

void Status::check() const {
  const TF_Code code = TF_GetCode(status_);
  if (code != TF_OK) throw StatusError(code, TF_Message(status_));
}

void set_from_exception(Status& status) {
  try {
    throw;
  } catch (const StatusError& error) {
    status.set(error.code(), error.what());
  } catch (const NoEngineError& error) {
    status.set(TF_FAILED_PRECONDITION, error.what());
  } catch (const UsageError& error) {
    // a fault: the call has started, so it suits this rank, but not what other ranks called
    status.set(error.fault() == nullptr ? TF_INVALID_ARGUMENT : TF_FAILED_PRECONDITION,
               error.what());
  } catch (const TimeoutError& error) {
    status.set(TF_DEADLINE_EXCEEDED,
               std::string(error.what()) + ". Perhaps a rank had fewer batches. " + kAsMany);
  } catch (const SystemError& error) {
    status.set(TF_UNAVAILABLE, error.what());
  } catch (const Error& error) {  // the end of a peer, abort() or shutdown()
    status.set(TF_ABORTED, with_hint(error));
  } catch (const std::bad_alloc&) {
    status.set(TF_RESOURCE_EXHAUSTED, "there is no memory left for a buffer of tensors");
  } catch (const std::exception& error) {
    status.set(TF_INTERNAL, error.what());
  } catch (...) {
    status.set(TF_INTERNAL,
               "an operation of smdist raised a C++ exception of an unknown type. Report it as a"
               " bug");
  }
}

}  // namespace smdist::tensorflow_binding
