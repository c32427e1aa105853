# SPDX-License-Identifier: Apache-2.0
"""Watch of a launcher over those of the other hosts, until standard input ends.

    watch.py HOST PORT FOLDER ADDRESS...

The addresses are those of all hosts, which are named by them; HOST is the number of this one.
"""

import sys
from pathlib import Path

from smdist.launch.host_watch import WatchPlace, watch_hosts


def main():
    number, port, folder, *hosts = sys.argv[1:]
    place = WatchPlace(
        host=hosts[int(number)],
        hosts=tuple(hosts),
        addresses={each: each for each in hosts},
        port=int(port),
        listening_address=hosts[0],
        folder=Path(folder),
        secret=b"a secret between launchers",
    )
    assert place.is_useful
    with watch_hosts(place, print):
        print("ready", flush=True)
        sys.stdin.read()


main()
