# SPDX-License-Identifier: Apache-2.0
"""Library that moves the wall clock of single hosts, for LD_PRELOAD; the monotonic clock stays."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path

_SOURCE = r"""
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static long moved_seconds(void) {
  char path[512];
  const char* folder = getenv("FAULTS_CLOCK");
  const char* address = getenv("SMDIST_ADDRESS");
  long seconds = 0;
  if (!folder || !address) return 0;
  snprintf(path, sizeof path, "%s/clock-%s", folder, address);
  FILE* file = fopen(path, "r");
  if (file) {
    if (fscanf(file, "%ld", &seconds) != 1) seconds = 0;
    fclose(file);
  }
  return seconds;
}

int clock_gettime(clockid_t clock, struct timespec* now) {
  int result = (int)syscall(SYS_clock_gettime, clock, now);
  if (clock == CLOCK_REALTIME && result == 0) now->tv_sec += moved_seconds();
  return result;
}

int gettimeofday(struct timeval* now, void* zone) {
  struct timespec exact;
  (void)zone;
  clock_gettime(CLOCK_REALTIME, &exact);
  now->tv_sec = exact.tv_sec;
  now->tv_usec = exact.tv_nsec / 1000;
  return 0;
}

time_t time(time_t* place) {
  struct timespec exact;
  clock_gettime(CLOCK_REALTIME, &exact);
  if (place) *place = exact.tv_sec;
  return exact.tv_sec;
}
"""


def with_movable_clock(folder: Path) -> Mapping[str, str]:
    """Compile the library, and return the variables with which processes use it."""
    source, library = folder / "clock.c", folder / "clock.so"
    source.write_text(_SOURCE)
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, source], check=True)
    return {"LD_PRELOAD": str(library), "FAULTS_CLOCK": str(folder)}
