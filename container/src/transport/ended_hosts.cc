// SPDX-License-Identifier: Apache-2.0
#include "transport/ended_hosts.h"

#include <fstream>

namespace smdist {

std::set<std::string> read_ended_hosts(const std::string& path) {
  std::set<std::string> hosts;
  if (path.empty()) return hosts;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (!line.empty()) hosts.insert(line);
  }
  return hosts;
}

}  // namespace smdist
