"""Measures whether asyncli's engine grows over time: one worker's table on the simulated network,
three days in minutes.

    python bench/virtual_night.py [--hours 72] [-c 5000] [-k 3600] [--loss 0.01]

The table is that of every soak; the clock is virtual. Memory is this process's private memory (USS)
at each virtual hour, after garbage collection, with the simulated network; its slope is Theil-Sen's
with a 95 % interval, after the first hours of warm-up. A share of the heartbeats (``--loss``) is
answered with a reset, to include losses, backoff and reopening.
"""

from __future__ import annotations

import argparse
import gc
import time

import psutil
from common import command, machine

from asyncli.analysis.trend import trend
from asyncli.core.adding import summable
from asyncli.engine.shard import build_shard
from asyncli.engine.sim import SimNet, SimServer, simulate
from asyncli.engine.spread import Destination, Spread
from asyncli.model.plan import Layer, build_plan
from asyncli.model.records import Tick

_WARM_H = 6


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--hours", type=int, default=72)
    parser.add_argument("-c", "--connections", type=int, default=5_000)
    parser.add_argument("-k", "--keepalive", type=int, default=3_600)
    parser.add_argument("--loss", type=float, default=0.01)
    chosen = parser.parse_args()
    plan = build_plan(
        [
            Layer(
                "--{key}",
                {
                    "urls": ["http://127.0.0.1/"],
                    "connections": chosen.connections,
                    "keepalive": chosen.keepalive,
                    "seed": 1,
                },
            )
        ]
    )
    shard = build_shard(plan, Spread((Destination(2, "127.0.0.1", 80),), (), 1, True, 28_232))
    server = SimServer(reset_share=chosen.loss, connect_s=0.0)
    net, process = SimNet(server), psutil.Process()
    # Only counts: the buckets of histograms summed over days would grow, in this script's own
    # memory.
    total, lost, held, hours, bytes_at, begun = Tick(), 0, 0, [], [], time.monotonic()
    for tick in simulate(shard, server, chosen.hours * 3600.0, net=net):
        for name, how in summable(Tick).items():
            if how is sum:
                setattr(total, name, getattr(total, name) + getattr(tick, name))
        lost += tick.lost
        held = max(held, tick.held_at_drain)
        if tick.second % 3600 == 0 and not tick.held_at_drain:
            gc.collect()
            hours.append(tick.second / 3600)
            bytes_at.append(float(process.memory_full_info().uss))
    print(f"{command()}\n{machine()}")
    print(
        f"{chosen.hours} virtual hours in {time.monotonic() - begun:.0f} s: {total.sent:,} "
        f"heartbeats, {lost:,} lost, {total.reopened:,} reopened"
    )
    print(
        f"opened {total.opened:,} - lost {lost:,} = held {held:,} at the end: "
        f"{total.opened - lost == held}"
    )
    print(
        f"private memory at hour {hours[0]:.0f}: {bytes_at[0]:,.0f} B, at hour {hours[-1]:.0f}: "
        f"{bytes_at[-1]:,.0f} B"
    )
    found = trend(hours[_WARM_H:], bytes_at[_WARM_H:])
    if found is not None:
        print(
            f"slope from hour {_WARM_H} on: {found.slope:+,.0f} B an hour ({found.low:+,.0f} to "
            f"{found.high:+,.0f}), p = {found.p_value:.2f}"
        )


if __name__ == "__main__":
    main()
