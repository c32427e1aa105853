// SPDX-License-Identifier: Apache-2.0
#include "transport/open_files.h"

#include <dirent.h>
#include <sys/resource.h>

#include <algorithm>
#include <cerrno>

#include "smdist/errors.h"

namespace smdist {
namespace {

constexpr size_t kReserve = 64;  // open files for connections without proof, and for the program

size_t size_of(rlim_t limit) {
  constexpr rlim_t kMost = 1 << 30;
  return static_cast<size_t>(std::min(limit, kMost));  // RLIM_INFINITY is the largest number
}

// Returns the number of other ranks on this rank's host; without shared memory 0.
size_t count_sharing(const Options& options) {
  if (!options.shares_memory) return 0;
  if (options.hosts.empty()) return static_cast<size_t>(options.size) - 1;
  const int own = options.hosts[static_cast<size_t>(options.rank)];
  return static_cast<size_t>(std::count(options.hosts.begin(), options.hosts.end(), own)) - 1;
}

}  // namespace

void raise_open_files_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == limit.rlim_max) return;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);  // if it fails, the present limit is counted with
}

size_t open_files_limit() {
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  return size_of(limit.rlim_cur);
}

size_t count_open_files() {
  DIR* const list = ::opendir("/proc/self/fd");
  if (list == nullptr) return 0;
  size_t count = 0;
  while (const dirent* entry = ::readdir(list)) count += entry->d_name[0] != '.';
  ::closedir(list);
  return count - std::min<size_t>(count, 1);  // without the list itself
}

bool is_out_of_files(int error_number) {
  return error_number == EMFILE || error_number == ENFILE || error_number == ENOBUFS ||
         error_number == ENOMEM;
}

std::string open_files_hint() {
  return "This process may have " + std::to_string(open_files_limit()) +
         " open files, and has raised its soft limit to that already. Raise the hard limit before "
         "it starts: 'ulimit -Hn', LimitNOFILE= of a systemd unit, or --ulimit nofile= of docker "
         "run";
}

uint32_t lanes_within(const Options& options, size_t limit, size_t num_open) {
  const size_t sharing = count_sharing(options);
  const size_t others = static_cast<size_t>(options.size) - 1 - sharing;
  const size_t fixed = num_open + 2 * sharing + kReserve;  // a socket and an arena for each
  if (limit < fixed + others) {
    throw SystemError("this rank needs " + std::to_string(fixed + others) +
                          " open files, for one connection to each other rank and for what is "
                          "open already, but this process may have " +
                          std::to_string(limit),
                      EMFILE);
  }
  const size_t lanes = others == 0 ? options.max_lanes : (limit - fixed) / others;
  return static_cast<uint32_t>(std::min<size_t>(lanes, options.max_lanes));
}

}  // namespace smdist
