// SPDX-License-Identifier: Apache-2.0
#include "history_writer.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <utility>

#include "smdist/errors.h"

namespace smdist::python {
namespace {

constexpr int kRequestMilliseconds = 1000;
constexpr std::chrono::milliseconds kStacksTime{1000};  // until compiled code counts as stuck
constexpr unsigned kCopySeconds = 5;
constexpr char kSignal = 's';
constexpr char kFailure = 'f';
constexpr char kStop = 'q';

std::atomic<int> wake_fd{-1};  // pipe of the one writer; a signal handler may use nothing else

void wake(char event) {
  const int error_number = errno;
  const int fd = wake_fd.load();
  if (fd >= 0 && ::write(fd, &event, 1) < 0) errno = error_number;  // full: it is awake anyway
  errno = error_number;
}

// Returns whether a timeout has ended the engine because this rank did not come.
bool is_late(const Fault& fault, int rank) {
  const std::string entry =
      "{\"rank\":" + std::to_string(rank) + ",";  // see json_of() of LateRanks
  return fault.kind == FaultKind::kTimeout && fault.details.find(entry) != std::string::npos;
}

bool failed_because_of(const Engine& engine) {
  try {
    if (const std::exception_ptr failure = engine.failure()) std::rethrow_exception(failure);
  } catch (const Error& error) {
    return error.fault() != nullptr && is_late(*error.fault(), engine.rank());
  }
  return false;
}

}  // namespace

HistoryWriter::HistoryWriter(std::string folder, int stacks, int requests, bool writes_failures)
    : folder_(std::move(folder)),
      stacks_(stacks),
      requests_(requests),
      writes_failures_(writes_failures) {
  if (::pipe2(wake_, O_CLOEXEC | O_NONBLOCK) != 0) {
    throw SystemError("cannot open a pipe for the writer of the history", errno);
  }
  is_requested();  // a request from before the start is not one to this process
  wake_fd = wake_[1];
  thread_ = std::thread([this] { run(); });
}

void HistoryWriter::watch(const std::shared_ptr<Engine>& engine) {
  const std::lock_guard<std::mutex> lock(mutex_);
  engine_ = engine;
}

bool HistoryWriter::install(int number) {
  struct sigaction present{};
  if (sigaction(number, nullptr, &present) != 0 || present.sa_handler != SIG_DFL) return false;
  if (!set_handler(number, nullptr)) return false;
  signal_ = number;
  return true;
}

void HistoryWriter::replace_handler() {
  struct sigaction replaced{};
  if (signal_ != 0 && set_handler(signal_, &replaced)) stacks_handler_ = replaced.sa_handler;
}

// Makes handle_signal() the handler of the signal. Returns false if the kernel refuses it.
bool HistoryWriter::set_handler(int number, struct sigaction* replaced) {
  struct sigaction own{};
  own.sa_handler = &HistoryWriter::handle_signal;
  own.sa_flags = SA_RESTART;
  return sigaction(number, &own, replaced) == 0;
}

void HistoryWriter::handle_signal(int /*number*/) { wake(kSignal); }

void HistoryWriter::on_failure() { wake(kFailure); }

void HistoryWriter::stop() {
  if (!thread_.joinable()) return;
  wake(kStop);
  thread_.join();
  wake_fd = -1;
  for (int& fd : wake_) ::close(std::exchange(fd, -1));
}

void HistoryWriter::close_in_child() noexcept {
  wake_fd = -1;
  if (has_own_handler()) ::signal(signal_, SIG_DFL);
  if (thread_.joinable()) thread_.detach();
}

void HistoryWriter::run() {
  while (true) {
    struct pollfd wait{wake_[0], POLLIN, 0};
    if (::poll(&wait, 1, kRequestMilliseconds) > 0 && !take_events()) return;
    if (is_requested()) write("request");
  }
}

// Writes what was requested. Returns false if the thread has to end.
bool HistoryWriter::take_events() {
  char events[256];
  const ssize_t count = ::read(wake_[0], events, sizeof events);
  const std::string taken(events, count > 0 ? static_cast<size_t>(count) : 0);
  if (taken.find(kSignal) != std::string::npos) write("signal");
  if (taken.find(kFailure) != std::string::npos && writes_failures_) write("failure");
  return taken.find(kStop) == std::string::npos;
}

// Returns whether the request has changed since the last call.
bool HistoryWriter::is_requested() {
  struct stat found{};
  if (::stat((folder_ + ".request").c_str(), &found) != 0) return false;
  const int64_t time = found.st_mtim.tv_sec * 1'000'000'000 + found.st_mtim.tv_nsec;
  return std::exchange(request_time_, time) != time;
}

// Returns whether the script has not replaced the handler of the signal.
bool HistoryWriter::has_own_handler() const {
  struct sigaction present = {};
  return stacks_handler_.load() != nullptr && sigaction(signal_, nullptr, &present) == 0 &&
         present.sa_handler == &HistoryWriter::handle_signal;
}

// Lets the stacks be written to their file.
void HistoryWriter::collect_stacks() {
  if (!has_own_handler()) return;
  take_stacks();  // discards stacks that came too late for the last request
  if (!request_stacks()) write_stacks_in_copy();
}

// Requests the stacks from a thread that can take the GIL. Returns whether they are there.
bool HistoryWriter::request_stacks() {
  const auto end = std::chrono::steady_clock::now() + kStacksTime;
  uint8_t answer = ++last_request_;
  if (::send(requests_, &answer, 1, MSG_NOSIGNAL | MSG_DONTWAIT) != 1) return false;
  while (true) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        end - std::chrono::steady_clock::now());
    struct pollfd wait{requests_, POLLIN, 0};
    if (left.count() <= 0 || ::poll(&wait, 1, static_cast<int>(left.count())) == 0) return false;
    const ssize_t count = ::recv(requests_, &answer, 1, MSG_DONTWAIT);
    if (count == 1 && answer == last_request_) return true;  // else an answer that came late
    if (count == 0) return false;
    if (count < 0 && errno != EAGAIN && errno != EINTR) return false;  // the socket was closed
  }
}

// Writes the stacks in a copy of this process, which has a thread like this one alone, runs no
// handlers of forks, and ends without a signal to this process.
void HistoryWriter::write_stacks_in_copy() const {
  const auto copy = static_cast<pid_t>(::syscall(SYS_clone, 0UL, nullptr, nullptr, 0UL, 0UL));
  if (copy < 0) return;
  if (copy > 0) {
    while (::waitpid(copy, nullptr, __WALL) < 0 && errno == EINTR) {
    }
    return;
  }
  const rlimit none{0, 0};
  ::setrlimit(RLIMIT_CORE, &none);
  for (const int fatal : {SIGSEGV, SIGBUS, SIGALRM}) ::signal(fatal, SIG_DFL);
  ::alarm(kCopySeconds);
  stacks_handler_.load()(signal_);
  ::_exit(0);
}

void HistoryWriter::write(const std::string& reason) {
  collect_stacks();
  const std::string stacks = take_stacks();
  std::shared_ptr<Engine> engine;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    engine = engine_.lock();
  }
  if (!engine) return;
  const std::string rank = "-rank-" + std::to_string(engine->rank());
  save("operations" + rank + ".json", engine->history(reason));
  if (stacks.empty()) return;
  save("stacks" + rank + ".txt", stacks);
  if (reason != "failure" || !failed_because_of(*engine)) return;
  fprintf(stderr, "smdist: rank %d did not come to an operation; its stacks are:\n%s",
          engine->rank(), stacks.c_str());
}

std::string HistoryWriter::take_stacks() const {
  std::string stacks;
  char part[4096];
  for (ssize_t count = 0;
       (count = ::pread(stacks_, part, sizeof part, static_cast<off_t>(stacks.size()))) > 0;) {
    stacks.append(part, static_cast<size_t>(count));
  }
  if (::ftruncate(stacks_, 0) != 0 || ::lseek(stacks_, 0, SEEK_SET) != 0) return {};
  return stacks;
}

// Replaces the file in one step. A file that cannot be written, for example because the disk is
// full, is reported in the log.
void HistoryWriter::save(const std::string& name, const std::string& content) const {
  std::error_code error;
  std::filesystem::create_directories(folder_, error);
  const std::filesystem::path path = std::filesystem::path(folder_) / name;
  const std::filesystem::path beside = path.string() + ".new";
  std::ofstream file(beside, std::ios::binary | std::ios::trunc);
  file << content;
  file.close();
  if (file) std::filesystem::rename(beside, path, error);
  if (file && !error) return;
  fprintf(stderr, "smdist: the file %s could not be written\n", path.c_str());
}

}  // namespace smdist::python
