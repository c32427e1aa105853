// SPDX-License-Identifier: Apache-2.0
// Hosts whose launcher has ended, as this rank's launcher knows them.
#pragma once

#include <set>
#include <string>

namespace smdist {

// Return the addresses in a file that has one a line; none if the path is empty or there is no such
// file.
std::set<std::string> read_ended_hosts(const std::string& path);

}  // namespace smdist
