// SPDX-License-Identifier: Apache-2.0
#include "failed_copy.h"

#include <c10/util/Exception.h>

#include <string>

#include "smdist/errors.h"

namespace smdist::torch_binding {

std::exception_ptr abort_after_failed_copy(Engine& engine, c10::Device device) {
  std::string what = "unknown exception";
  try {
    throw;
  } catch (const c10::Error& error) {
    what = error.what_without_backtrace();
  } catch (const std::exception& error) {
    what = error.what();
  }
  const std::string reason = "a copy between " + device.str() + " of rank " +
                             std::to_string(engine.rank()) + " and the host failed: " + what;
  engine.abort(reason);
  const std::exception_ptr earlier = engine.failure();
  return earlier ? earlier : std::make_exception_ptr(Error(reason));
}

}  // namespace smdist::torch_binding
