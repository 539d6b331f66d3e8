"""Rotation between hosts with links of a limited rate, against the scale model.

    python benchmarks/hosts.py          2 and 3 hosts, links of 10 Mbit/s to 10 Gbit/s (root, Linux; some minutes)

The hosts are network namespaces of this machine, with addresses of their own and a switch between them; `tc` limits
what a host sends and what it gets. They share the cores of this machine: the model takes the rate of a host from the
run with the fastest links. A smoke run compares nothing, because namespaces need root.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

import rotation
from common import keep, make_parser, parse_arguments, work_folder
from scale import GBIT, Machine, Size, rotated_pass
from swivel.counts import open_matrix

MEASURES = ("swivel.training.distributed.ring", "swivel.training.schedule", "swivel.training.loop")
SWITCH = "swivel-bench"  # the namespace of the switch; those of the hosts have a number after it
NETWORK = "10.231.79"
LIMIT_SECONDS = 300  # for one run
LATENCY = 1e-4  # seconds of a message between two namespaces; of no importance here


def shell(command: str) -> None:
    done = subprocess.run(command.split(), capture_output=True, text=True, timeout=60, check=False)
    if done.returncode != 0:
        raise OSError(f"{command}: {done.stderr.strip() or done.stdout.strip()}")


@contextlib.contextmanager
def connect_hosts(count: int, mbit: int) -> Iterator[None]:
    """Make namespaces, each with a cable to a switch whose ends both send at most so many Mbit/s."""
    names = [SWITCH, *(f"{SWITCH}{host}" for host in range(count))]
    limit = f"root tbf rate {mbit}mbit burst {max(64, mbit // 8)}kb latency 100ms"
    try:
        for name in names:
            shell(f"ip netns add {name}")
            shell(f"ip -n {name} link set lo up")
        shell(f"ip -n {SWITCH} link add switch type bridge")
        shell(f"ip -n {SWITCH} link set switch up")
        for host, name in enumerate(names[1:]):
            shell(f"ip -n {name} link add eth0 type veth peer name port{host} netns {SWITCH}")
            shell(f"ip -n {name} address add {NETWORK}.{host + 1}/24 dev eth0")
            shell(f"ip -n {name} link set eth0 up")
            shell(f"ip -n {SWITCH} link set port{host} master switch up")
            shell(f"tc -n {name} qdisc add dev eth0 {limit}")
            shell(f"tc -n {SWITCH} qdisc add dev port{host} {limit}")
        yield
    finally:
        for name in names:
            with contextlib.suppress(OSError):
                shell(f"ip netns delete {name}")


def run(order: dict[str, Any], hosts: int) -> dict[str, Any]:
    """Train on one rank per host; return what the leading one says."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "eth0", "WORLD_SIZE": str(hosts)}
    environment |= {"MASTER_ADDR": f"{NETWORK}.1", "MASTER_PORT": "29555", "LOCAL_RANK": "0"}
    with tempfile.TemporaryDirectory(dir=work_folder()) as folder:
        command = [sys.executable, rotation.__file__, "--drive", json.dumps({**order, "folder": folder})]
        ranks = []
        for host in range(hosts):
            inside = ["ip", "netns", "exec", f"{SWITCH}{host}", *command]
            ranks.append(subprocess.Popen(inside, env={**environment, "RANK": str(host)}, stdout=subprocess.PIPE))
        try:
            outputs = [rank.communicate(timeout=LIMIT_SECONDS)[0] for rank in ranks]
        finally:
            for rank in ranks:
                rank.kill()
    assert not any(rank.returncode for rank in ranks)
    found: dict[str, Any] = json.loads(outputs[0].splitlines()[-1])
    return found


def measure(options: argparse.Namespace) -> dict[str, Any]:
    order = rotation.make_order(options)
    matrix = open_matrix(order["matrix"])
    size = Size(*matrix.shape, options.block_size, options.dim)
    cells = matrix.shape[0] * matrix.shape[1]
    lines = []
    for hosts in options.hosts:
        rate = 0.0
        for mbit in options.mbit:
            with connect_hosts(hosts, mbit):
                found = run(order, hosts)
            # The first links are so fast that only the cores count, which all hosts share, with other work on them.
            rate = rate or found["cells_per_second"] / hosts
            model = rotated_pass(size, Machine(rate, 0.0, mbit / 1000 * GBIT, LATENCY), hosts)
            seconds = cells / found["cells_per_second"]
            line = {"hosts": hosts, "mbit": mbit, "seconds": round(seconds, 2), "model": round(model, 2)}
            lines.append(line | {"ratio": round(model / seconds, 3)})
            print(lines[-1], flush=True)
    sizes = {name: getattr(options, name) for name in ("blocks", "block_size", "dim", "epochs")}
    return {**sizes, "runs": lines}


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--hosts", type=int, nargs="*", default=[2, 3])
    parser.add_argument("--mbit", type=int, nargs="+", default=[10_000, 100, 20, 10], help="of a link, each way")
    parser.add_argument("--blocks", type=int, default=8, help="a side")
    parser.add_argument("--block-size", type=int, default=1024)
    parser.add_argument("--cells", type=int, default=20_000, help="observed, a block")
    parser.add_argument("--dim", type=int, default=300)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--dtype", default="float32")
    options = parse_arguments(parser, hosts=[], blocks=2, block_size=20, cells=50, dim=4, epochs=2)
    keep(options, measure(options))


if __name__ == "__main__":
    main()
