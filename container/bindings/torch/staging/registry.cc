// SPDX-License-Identifier: Apache-2.0
#include "registry.h"

#include <pthread.h>

#include <atomic>
#include <map>
#include <mutex>
#include <vector>

#include "../work.h"

namespace smdist::torch_binding {
namespace {

struct Registry {
  std::mutex mutex;
  std::map<const Engine*, std::weak_ptr<StagingQueue>> queues;  // guarded by mutex
  std::atomic<bool> is_used{false};
};

Registry& registry();

void before_fork() { registry().mutex.lock(); }
void after_fork_in_parent() { registry().mutex.unlock(); }

// Keeps the queues of the parent process for ever, because their threads do not exist in the child,
// and makes them unusable.
void after_fork_in_child() {
  Registry& known = registry();
  for (const auto& [_, found] : known.queues) {
    const std::shared_ptr<StagingQueue> queue = found.lock();
    if (!queue) continue;
    queue->disable_in_child();
    new std::shared_ptr<StagingQueue>(queue);
  }
  known.queues.clear();
  known.is_used = false;
  known.mutex.unlock();
}

// Never destroyed: operations may end after other objects are destroyed.
Registry& registry() {
  static auto* const of_process = [] {
    pthread_atfork(&before_fork, &after_fork_in_parent, &after_fork_in_child);
    return new Registry;
  }();
  return *of_process;
}

std::vector<std::shared_ptr<StagingQueue>> all_queues() {
  std::vector<std::shared_ptr<StagingQueue>> queues;
  const std::lock_guard<std::mutex> lock(registry().mutex);
  for (const auto& [_, found] : registry().queues) {
    if (std::shared_ptr<StagingQueue> queue = found.lock()) queues.push_back(std::move(queue));
  }
  return queues;
}

}  // namespace

std::shared_ptr<StagingQueue> staging_of(const std::shared_ptr<Engine>& engine,
                                         const StagingOptions& options) {
  Registry& known = registry();
  const std::lock_guard<std::mutex> lock(known.mutex);
  std::erase_if(known.queues, [](const auto& each) { return each.second.expired(); });
  std::weak_ptr<StagingQueue>& found = known.queues[engine.get()];
  std::shared_ptr<StagingQueue> queue = found.lock();
  if (!queue) found = queue = std::make_shared<StagingQueue>(engine, options);
  known.is_used = true;
  return queue;
}

std::shared_ptr<StagingQueue> find_staging(const Engine& engine) {
  Registry& known = registry();
  if (!known.is_used) return nullptr;
  const std::lock_guard<std::mutex> lock(known.mutex);
  const auto found = known.queues.find(&engine);
  return found == known.queues.end() ? nullptr : found->second.lock();
}

void finish_all_staging() {
  for (const auto& queue : all_queues()) queue->finish_awaited();
}

void stop_all_staging() {
  std::exception_ptr error;
  for (const auto& queue : all_queues()) {
    queue->stop();
    if (!error) error = queue->take_late_error();
  }
  if (error) std::rethrow_exception(translated(error));
}

}  // namespace smdist::torch_binding
