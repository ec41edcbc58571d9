"""The Replica deployment: a coordinator that is called with the messages of
deployments/messages.py."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, Any

from ray import serve
from ray.serve.schema import ReplicaRank

from actors.coordinator.events import Event
from actors.coordinator.stream import Cancelled, RequestFailed, Stream
from actors.hosts.protocol import HostLost
from cluster.config import AppConfig
from deployments import messages
from deployments.logs import announce, forward_to_serve, log_event, print_line
from deployments.messages import (
    Heartbeat,
    LiveQuery,
    Message,
    Named,
    Routed,
    StreamRequest,
)
from deployments.replica.autoscaling_signals import AutoscalingSignals
from deployments.replica.live import LiveNumbers, ReplicaNumbers
from deployments.replica.metrics import Metrics
from deployments.replica.streams import HeartbeatMonitor, refusal, submit
from deployments.router_actor import exchange, share
from deployments.series import Family
from deployments.trainer_actor import exchange_lessons
from engine.errors import SpindleError

if TYPE_CHECKING:
    from deployments.replica.service import Service

_LOG = logging.getLogger(__name__)
_EXPORT_EVERY_S = 1.0
"""Ray reports metrics every 10 s by default."""


class Replica:
    """One replica. Serve considers it ready when `reconfigure` has returned for the first time."""

    def __init__(self, config: AppConfig) -> None:
        forward_to_serve()
        self._config = config
        self._name = serve.get_replica_context().replica_id.unique_id
        self._streams: dict[str, Stream] = {}
        """Streams being served, by the name that their ingress gave them."""
        self._heartbeat_monitor = HeartbeatMonitor(
            config.limits.silent_ingress_s, self._cancel_without_ingress
        )
        self._without_ingress: set[str] = set()
        self._signals = AutoscalingSignals()
        # Started here rather than in a request, because tasks that a request starts are cancelled
        # with it.
        loop = asyncio.get_running_loop()
        self._starting = loop.create_task(self._start())
        self._announcing: asyncio.Task[None] | None = None
        self._loading: asyncio.Task[None] | None = None
        self._checking: asyncio.Task[None] | None = None

    async def _start(self) -> "Service":
        # Imported here, because models take seconds to import and building the application needs
        # none.
        from deployments.replica.hosts import start_hosts
        from deployments.replica.service import Service
        from policies.precompile import warm_up

        print_line(f"Spindle: loading {self._config.served_name}, some 10 s")
        hosts = start_hosts(self._config, self._name, print_line)
        # What the coordinator would wait for when it is made.
        fleet, _ = await asyncio.gather(hosts, asyncio.to_thread(warm_up))
        service = Service(self._config, fleet)
        print_line("Spindle: warming up")
        await service.warm_up()
        drafters = {lane.view.name: lane.view.drafter for lane in fleet.lanes}
        slo_classes = {name: named.slo for name, named in self._config.slo_classes.items()}
        self._metrics = Metrics(self._name, drafters, slo_classes)
        service.add_observer(self._observe)
        self._live = LiveNumbers(self._name, service.lanes)
        service.add_observer(self._live.observe)
        self._pooling = asyncio.create_task(service.pool(self._name, exchange))
        self._sharing = asyncio.create_task(service.share(self._name, share))
        self._exporting = asyncio.create_task(self._export_metrics(service))
        if self._config.learner is not None:
            learning = service.learn(self._name, exchange_lessons, self._metrics.set_learning)
            self._learning = asyncio.create_task(learning)
        return service

    async def reconfigure(self, user_config: Mapping[str, Any] | None, rank: ReplicaRank) -> None:
        """Sets the policies from the next round on; None: those of the config. An error names the
        field.

        Serve calls it before the replica is ready because it takes the rank.
        """
        config = self._config if user_config is None else self._config.with_policies(user_config)
        service = await self._starting
        service.use(config.policies)
        loop = asyncio.get_running_loop()
        if self._loading is None:
            self._loading = loop.create_task(service.load_vocabularies())
        if rank.rank == 0 and self._announcing is None:
            self._announcing = loop.create_task(announce(config))

    async def stream(self, request: StreamRequest) -> AsyncGenerator[Message, None]:
        """Serves one choice of a client's request; closing the generator cancels it."""
        try:
            await self._service.check_grammar(request["params"], request["tenant"])
            stream = submit(self._service.coordinator, request)
        except SpindleError as error:
            yield refusal(error, request)
            return
        except Exception:
            _LOG.exception("request %s fails", request["name"])
            yield messages.failed_by_defect(request["name"])
            return
        name, ingress = request["name"], request["ingress"]
        self._streams[name] = stream
        self._heartbeat_monitor.add_stream(name, ingress)
        try:
            yield {"kind": "accepted", "replica": self._name}
            async with aclosing(stream.relay(request["pause_s"])) as commits:
                async for commit in commits:
                    yield messages.committed(commit, stream.statistics)
        except Cancelled:
            if name in self._without_ingress:
                yield messages.failed("its ingress gave no sign of life", retry=True)
            else:
                stalled_s = self._config.limits.stalled_s
                yield messages.failed(f"nothing of it was read for {stalled_s:g} s", retry=False)
        except RequestFailed:
            yield messages.failed_by_defect(name)
        except SpindleError:  # the coordinator has stopped
            yield messages.failed("its replica stopped serving", retry=True)
        finally:
            stream.close()
            self._without_ingress.discard(name)
            if self._streams.get(name) is stream:  # not replaced by a later attempt
                del self._streams[name]
                self._heartbeat_monitor.remove_stream(name, ingress)

    async def heartbeat(self, message: Heartbeat) -> None:
        """Processes a heartbeat. Those for a replica that is lost may arrive here, and are
        dropped."""
        if message["replica"] != self._name:
            return
        self._heartbeat_monitor.record_heartbeat(message["ingress"])
        for name, tokens in message["read"].items():
            if name in self._streams:
                self._streams[name].acknowledge(tokens)
        for name in message["left"]:
            if name in self._streams:
                self._service.coordinator.cancel(self._streams[name].request)

    async def describe(self, _routed: Routed) -> dict[str, Any]:
        """What an ingress needs to check requests."""
        limits = self._service.limits
        return {
            "max_context": limits.max_context,
            "vocab_size": limits.vocab_size,
            "stop_token_ids": list(limits.stop_token_ids),
            "follows_grammars": limits.follows_grammars,
            "down": self._service.coordinator.lanes_down,
        }

    async def state(self) -> dict[str, Any]:
        """For operators and tests: the load, and the KV blocks, which shows whether any have
        leaked."""
        kv = await self._service.coordinator.kv_state()
        load = self._load()
        return {
            "replica": self._name,
            "running": int(load["running"]),
            "waiting": int(load["waiting"]),
            "down": self._service.coordinator.lanes_down,
            "kv_blocks": {
                "free": kv.free,
                "used": kv.used,
                "cached": kv.cached,
                "total": kv.total,
            },
        }

    async def metrics(self, named: Named) -> list[Family]:
        """Its series, for `/metrics`; none if the call was for a replica that is gone."""
        if named["replica"] != self._name:
            return []
        self._set_load(self._service)
        return self._metrics.families()

    async def live(self, query: LiveQuery) -> ReplicaNumbers | None:
        """The numbers of its last seconds; None if the call was for a replica that is gone."""
        if query["replica"] != self._name:
            return None
        now = asyncio.get_running_loop().time()
        return self._live.read(query["seconds"], now, self._load(), self._signals.attainment)

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """Called by Serve's autoscaler (deployments/scaling.py)."""
        return self._load()

    async def check_health(self) -> None:
        """Serve replaces a replica for which this raises. Lost hosts are restarted by the
        coordinator, so it raises only if the coordinator itself has stopped."""
        if not self._service.coordinator.alive:
            raise RuntimeError("the coordinator has stopped")
        if self._checking is None or self._checking.done():
            # Not awaited, because Serve would replace the replica if a host is slow to answer.
            self._checking = asyncio.create_task(self._check_hosts())

    async def _check_hosts(self) -> None:
        try:
            coordinator = self._service.coordinator
            await coordinator.check_hosts()
            with suppress(HostLost):  # it is being replaced
                self._metrics.set_kv(await coordinator.kv_state())
        except Exception:
            _LOG.exception("idle hosts could not be checked")

    @property
    def _service(self) -> "Service":
        """The started service; Serve calls no method that needs it before `reconfigure` has
        returned."""
        return self._starting.result()

    def _cancel_without_ingress(self, name: str) -> None:
        """Cancels a stream whose ingress has sent no heartbeat for too long."""
        self._without_ingress.add(name)
        self._service.coordinator.cancel(self._streams[name].request)

    def _observe(self, event: Event) -> None:
        self._metrics.observe(event)
        log_event(event)
        self._signals.observe(event)

    async def _export_metrics(self, service: "Service") -> None:
        while True:
            await asyncio.sleep(_EXPORT_EVERY_S)
            try:
                self._set_load(service)
                self._metrics.export()
            except Exception:
                _LOG.exception("metrics are not exported")

    def _set_load(self, service: "Service") -> None:
        load = self._load()
        self._metrics.set_load(load["running"], load["waiting"])

    def _load(self) -> dict[str, float]:
        served = [stream.statistics for stream in self._streams.values()]
        return self._signals.read(served, asyncio.get_running_loop().time())
