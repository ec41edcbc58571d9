"""Which ingresses a replica counts as lost."""

import asyncio
import threading
import time

from deployments.replica.streams import HeartbeatMonitor

SILENT_S = 0.4


def test_a_replica_that_was_stopped_reads_heartbeats_before_it_gives_streams_up() -> None:
    async def run() -> None:
        cancelled: list[str] = []
        monitor = HeartbeatMonitor(SILENT_S, cancelled.append)
        monitor.add_stream("one", "ingress")
        loop = asyncio.get_running_loop()

        async def heartbeat() -> None:
            await asyncio.sleep(0)
            monitor.record_heartbeat("ingress")

        sending = threading.Timer(0.1, asyncio.run_coroutine_threadsafe, (heartbeat(), loop))
        sending.start()
        time.sleep(1.5 * SILENT_S)
        await asyncio.sleep(SILENT_S / 4)
        assert not cancelled
        await asyncio.sleep(2 * SILENT_S)
        assert cancelled == ["one"]

    asyncio.run(run())
