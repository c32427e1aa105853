// SPDX-License-Identifier: Apache-2.0
// Replays the corpora of all fuzz targets. Each corpus is a text file with one input per line, in
// hexadecimal digits; lines that begin with # are comments.
#include <chrono>
#include <fstream>
#include <set>
#include <string>

#include "../check.h"
#include "fuzz_target.h"

namespace smdist::fuzzing {
namespace {

std::vector<uint8_t> bytes_of(const std::string& digits) {
  std::vector<uint8_t> bytes;
  for (size_t i = 0; i + 1 < digits.size(); i += 2) {
    bytes.push_back(static_cast<uint8_t>(std::stoul(digits.substr(i, 2), nullptr, 16)));
  }
  return bytes;
}

size_t replay(const FuzzTarget& target, const std::string& folder) {
  std::ifstream corpus(folder + "/" + target.name + ".hex");
  CHECK(corpus.is_open());
  size_t inputs = 0;
  for (std::string line; std::getline(corpus, line);) {
    if (!line.empty() && line[0] == '#') continue;
    const std::vector<uint8_t> bytes = bytes_of(line);
    FuzzInput input(bytes.data(), bytes.size());
    target.run(input);
    ++inputs;
  }
  return inputs;
}

int replay_all(const std::string& folder) {
  CHECK(!fuzz_targets().empty());
  for (const FuzzTarget& target : fuzz_targets()) {
    size_t inputs = 0;
    testing::run(target.name, [&] { inputs = replay(target, folder); });
    CHECK(inputs > 0);
  }
  return 0;
}

}  // namespace
}  // namespace smdist::fuzzing

int main(int argc, char** argv) {
  CHECK_EQ(2, argc);
  return smdist::fuzzing::replay_all(argv[1]);
}
