// SPDX-License-Identifier: Apache-2.0
#include "statuses.h"

#include <new>

#include "smdist/errors.h"

namespace smdist::tensorflow_binding {

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
    status.set(TF_INVALID_ARGUMENT, error.what());
  } catch (const TimeoutError& error) {
    status.set(TF_DEADLINE_EXCEEDED, error.what());
  } catch (const SystemError& error) {
    status.set(TF_UNAVAILABLE, error.what());
  } catch (const Error& error) {  // a peer's end, abort() or shutdown()
    status.set(TF_ABORTED, error.what());
  } catch (const std::bad_alloc&) {
    status.set(TF_RESOURCE_EXHAUSTED, "there is no memory left for a buffer of tensors");
  } catch (const std::exception& error) {
    status.set(TF_INTERNAL, error.what());
  } catch (...) {
    status.set(TF_INTERNAL, "an unknown error");
  }
}

}  // namespace smdist::tensorflow_binding
