"""Calls a tool of `asyncagents mcp` and one of a no-op server, interleaved, with the official MCP
client; prints p50 and p99 of both in microseconds. Arguments: number of calls, our program, the
no-op server and its argument."""

import asyncio
import json
import os
import statistics
import sys
import time

from mcp import Client, StdioServerParameters

SAID = "No background tasks found"


async def call(client, name):
    began = time.perf_counter()
    answer = await client.call_tool(name, {})
    took = time.perf_counter() - began
    assert answer.content[0].text == SAID, answer
    return took * 1e6


async def main(times, program, other, argument):
    ours = StdioServerParameters(command=program, args=["mcp"], env=dict(os.environ), cwd="/")
    nothing = StdioServerParameters(command=other, args=[argument], env=dict(os.environ), cwd="/")
    async with Client(ours, mode="legacy") as ours, Client(nothing, mode="legacy") as nothing:
        figures = [
            (await call(ours, "asyncagents_list"), await call(nothing, "nothing"))
            for _ in range(times)
        ]
    both = [statistics.quantiles(of, n=100) for of in zip(*figures[times // 10:])]
    print(json.dumps([[cuts[49] for cuts in both], [cuts[98] for cuts in both]]))


asyncio.run(main(int(sys.argv[1]), *sys.argv[2:]))
