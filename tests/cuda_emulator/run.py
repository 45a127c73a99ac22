"""Runs a command where GPUs are emulated: ``python tests/cuda_emulator/run.py --devices 4 -- tvm-sched run model.so``."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import build


def main() -> None:
    """Replace this process by the command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--devices", type=int, default=1, help="how many GPUs there are")
    parser.add_argument(
        "--peers", choices=build.PEERS, default="all", help="which GPUs reach the memory of which others"
    )
    parser.add_argument(
        "--archs", default="sm_90", help="of the GPUs, such as sm_90,sm_80; the last is that of all others"
    )
    parser.add_argument("--memory", type=int, default=1 << 30, help="bytes of each GPU")
    parser.add_argument("--seed", type=int, default=1, help="of the order of blocks and threads")
    parser.add_argument("--no-libraries", action="store_true", help="without cuBLASLt and cuDNN")
    parser.add_argument("command", nargs="+")
    asked = parser.parse_args()
    if reason := build.why_not():
        sys.exit(f"GPUs cannot be emulated here: {reason}")
    environment = build.environment(
        asked.devices,
        peers=asked.peers,
        archs=asked.archs,
        memory=asked.memory,
        seed=asked.seed,
        libraries=not asked.no_libraries,
    )
    os.execvpe(asked.command[0], asked.command, environment)


if __name__ == "__main__":
    main()
