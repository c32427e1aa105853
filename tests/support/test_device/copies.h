// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace test_device {

// How fast copies are: a copy keeps its stream busy as long as its bytes take. Zero, the start
// value, stands for no time. Throws c10::Error for a negative number.
void set_copy_bandwidth(double bytes_per_second);

}  // namespace test_device
