"""The twin's own API below `/twin`: what exists, the bill, the weather, and faults on demand."""

from __future__ import annotations

import hmac
import json
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from stoker.errors import TwinFailed
from stoker.model import wire
from stoker.twin import rights
from stoker.twin.arm import storage
from stoker.twin.arm.subscription.places import STATES, registered, unregistered
from stoker.twin.blob import BlobService
from stoker.twin.market import catalog, prices
from stoker.twin.refusal import Refused, invalid
from stoker.twin.state import CloudState, Instance, PriceOrder, Principal, Resource, ScheduledEvent, name_uuid
from stoker.twin.time import power
from stoker.twin.time.weather import FORECASTS, KINDS, OrderedFault, forecast
from stoker.twin.web.server import Response, WebRequest
from stoker.twin.world import TwinWorld

_EVENTS = ("Preempt", "Freeze", "Reboot", "Redeploy", "Terminate")


class TwinControl:
    """`POST /twin/<word>` with a JSON object changes something; `GET` reads something."""

    def __init__(
        self, world: TwinWorld, token: str, log: deque[dict[str, Any]], blob: BlobService | None = None
    ) -> None:
        self._world = world
        self._service = blob
        self._token = token
        self._log = log
        self._gets: dict[str, Callable[[], Any]] = {
            "status": self._status,
            "bill": lambda: prices.bill(world.cloud, world.clock.now()),
            "weather": lambda: wire.to_plain(world.cloud.weather),
            "accounts": self._accounts,
            "requests": lambda: list(log),
        }
        self._posts: dict[str, Callable[[Mapping[str, Any]], Any]] = {
            "evict": self._evict,
            "event": self._event,
            "fault": self._fault,
            "weather": self._weather,
            "price": self._price,
            "quota": self._quota,
            "restrict": self._restrict,
            "speed": self._speed,
            "blob": self._blob,
            "principal": self._principal,
            "subscription": self._subscription,
            "registration": self._registration,
            "logout": self._logout,
            "calm": self._calm,
            "expose": lambda order: world.expose(int(order["port"])),
        }

    def __call__(self, request: WebRequest) -> Response:
        given = request.headers.get("authorization", "").removeprefix("Bearer ")
        if not hmac.compare_digest(given.encode(), self._token.encode()):
            return _error(401, "the token of the twin's control API is missing or wrong")
        word = request.path.strip("/").partition("/")[2]
        try:
            if request.method == "GET" and word in self._gets:
                return Response(200, self._gets[word]())
            if request.method == "POST" and word in self._posts:
                return Response(200, self._posts[word](json.loads(request.body or b"{}")) or {})
        except Refused as refusal:
            return _error(refusal.status, refusal.message)
        except TwinFailed as error:
            return Response(409, {"error": {"code": error.code, "message": error.message, "hint": error.hint}})
        except (ValueError, KeyError, TypeError) as error:
            return _error(400, f"{word}: {error!r}")
        return _error(404, f"the twin's control API does not support {request.method} `{word}`")

    def _status(self) -> dict[str, Any]:
        cloud, clock = self._world.cloud, self._world.clock
        costs = prices.bill(cloud, clock.now())
        return {
            "now_s": round(clock.now(), 3),
            "speed": clock.speed,
            "seed": cloud.weather.seed,
            "requests": cloud.requests,
            "resources": sum(one.kind != rights.DEFINITIONS for one in cloud.resources.values()),
            "roles": len(cloud.all(rights.DEFINITIONS)),  # custom ones; they have no location, and are free
            "machines": [_machine(cloud, one) for one in cloud.instances.values()],
            "chores": len(cloud.chores),
            "usd": costs["usd"],
            "usd_per_hour": costs["usd_per_hour"],
        }

    def _evict(self, order: Mapping[str, Any]) -> None:
        """`{vm, notice_s = 30, withdrawn = false}`: evicts a machine, spot or not."""
        notice_s, withdrawn = float(order.get("notice_s", 30)), bool(order.get("withdrawn"))

        def transition(cloud: CloudState, now: float) -> tuple[CloudState, None]:
            vm = find_vm(cloud, str(order["vm"]))
            return power.preempt(cloud, vm, now, self._world.clock.wall, notice_s=notice_s, withdrawn=withdrawn), None

        self._world.change(transition)

    def _event(self, order: Mapping[str, Any]) -> dict[str, str]:
        """`{vm, type, notice_s}`: any other kind of scheduled event."""
        kind = str(order["type"])
        if kind not in _EVENTS:
            raise invalid(f"unknown event `{kind}`, expected one of {', '.join(_EVENTS)}")

        def transition(cloud: CloudState, now: float) -> tuple[CloudState, dict[str, str]]:
            vm = find_vm(cloud, str(order["vm"]))
            notice = ScheduledEvent(
                name_uuid("event", vm.id, now), vm.id, kind, now + float(order.get("notice_s", 900))
            )
            return power.announce(cloud, notice, self._world.clock.wall), {"id": notice.id.upper()}

        return self._world.change(transition)

    def _fault(self, order: Mapping[str, Any]) -> None:
        """An `OrderedFault`: `{kind, method, path, times, …}`."""
        fault = OrderedFault(**order)
        if fault.kind not in KINDS:
            raise invalid(f"unknown fault `{fault.kind}`, expected one of {', '.join(KINDS)}")
        self._set(lambda cloud, _: replace(cloud, faults=(*cloud.faults, fault)))

    def _weather(self, order: Mapping[str, Any]) -> Any:
        """Fields of the weather, or a `forecast` by name."""
        given = dict(order)
        name = given.pop("forecast", "")
        if name and name not in FORECASTS:
            raise invalid(f"unknown forecast `{name}`, expected one of {', '.join(FORECASTS)}")
        if "notices_s" in given:
            given["notices_s"] = tuple(given["notices_s"])
        self._set(
            lambda cloud, _: replace(
                cloud, weather=replace(forecast(name, cloud.weather.seed) if name else cloud.weather, **given)
            )
        )
        return wire.to_plain(self._world.cloud.weather)

    def _price(self, order: Mapping[str, Any]) -> None:
        """`{size, region, usd_per_hour}`; null restores the weather's price."""
        size, region = str(order["size"]), str(order["region"])
        if catalog.size_in(size, region) is None:
            raise invalid(f"{size} is not offered in {region}")
        usd = order["usd_per_hour"]
        self._set(lambda cloud, now: replace(cloud, prices=(*cloud.prices, PriceOrder(size, region, now, usd))))

    def _quota(self, order: Mapping[str, Any]) -> None:
        """`{region, family, limit}`; the family may be `cores`, `lowPriorityCores` or a limit of addresses."""
        key, limit = f"{order['region']}/{order['family']}".lower(), int(order["limit"])
        self._set(lambda cloud, _: replace(cloud, quotas={**cloud.quotas, key: limit}))

    def _restrict(self, order: Mapping[str, Any]) -> None:
        """`{region, size, on = true}`: makes the size unavailable there; without `size`, the region for everything."""
        key = f"{order['region']}/{order.get('size', '')}".lower()
        kept = [one for one in self._world.cloud.restrictions if one != key]
        now = (*kept, key) if order.get("on", True) else tuple(kept)
        self._set(lambda cloud, _: replace(cloud, restrictions=now))

    def _subscription(self, order: Mapping[str, Any]) -> None:
        """`{state}`: Enabled, Warned, PastDue, Disabled or Deleted."""
        state = str(order["state"])
        if state not in STATES:
            raise invalid(f"unknown state `{state}`, expected one of {', '.join(STATES)}")
        self._set(lambda cloud, _: replace(cloud, standing=state))

    def _registration(self, order: Mapping[str, Any]) -> None:
        """`{namespace, on}`: whether the subscription is registered for a service such as Microsoft.Compute."""
        change = registered if order.get("on") else unregistered
        self._set(lambda cloud, _: change(cloud, str(order["namespace"])))

    def _blob(self, order: Mapping[str, Any]) -> dict[str, str]:
        """`{}`: starts the twin's own Blob service and returns its address. `{endpoint}`: new storage accounts use
        another Blob service."""
        if "endpoint" in order or self._service is None:
            self._set(lambda cloud, _: replace(cloud, blob=str(order["endpoint"]).rstrip("/")))
            return {}
        return self._service.start().told

    def _accounts(self) -> dict[str, str]:
        """In the form of Azurite's variable AZURITE_ACCOUNTS."""
        accounts = self._world.cloud.all(storage.ACCOUNTS)
        return {"azurite": ";".join(f"{one.name}:{':'.join(one.secret['keys'])}" for one in accounts)}

    def _speed(self, order: Mapping[str, Any]) -> None:
        speed = float(order["speed"])
        if not 0.01 <= speed <= 100_000:
            raise invalid(f"the speed is {speed}, expected a number from 0.01 to 100000")
        self._world.clock.set_speed(speed)
        self._set(self._told_again)

    def _told_again(self, cloud: CloudState, _now: float) -> CloudState:
        """Notices contain wall-clock times, which have changed."""
        for vm in {notice.vm for notice in cloud.notices.values()}:
            cloud = power.tell(cloud, vm, self._world.clock.wall)
        return cloud

    def _principal(self, order: Mapping[str, Any]) -> dict[str, str]:
        """`{name, secret, object_id}`: a service principal without any role. Its id is generated unless given."""
        name, secret = str(order["name"]), str(order["secret"])
        seed = self._world.cloud.weather.seed
        object_id = str(order.get("object_id") or name_uuid("object", seed, name))
        one = Principal(name_uuid("client", seed, name), object_id, secret, name)
        self._set(lambda cloud, _: replace(cloud, principals={**cloud.principals, one.client_id: one}))
        return {"client_id": one.client_id, "object_id": one.object_id}

    def _logout(self, _: Mapping[str, Any]) -> None:
        """Expires all tokens issued so far."""
        self._set(lambda cloud, _: replace(cloud, tokens_from=time.time() + 1))
        time.sleep(1.1)  # tokens have timestamps in seconds

    def _calm(self, _: Mapping[str, Any]) -> None:
        """No more faults: calm weather, and all ordered faults are dropped."""
        self._set(
            lambda cloud, _: replace(cloud, weather=forecast("calm", cloud.weather.seed), faults=(), restrictions=())
        )

    def _set(self, change: Callable[[CloudState, float], CloudState]) -> None:
        self._world.change(lambda cloud, now: (change(cloud, now), None))


def _machine(cloud: CloudState, one: Instance) -> dict[str, Any]:
    """`tags` are its own, and those of its group that it has no other value for."""
    places = [cloud.find(id) for id in ("/".join(one.vm.split("/")[:5]), one.vm)]
    tags = {name: value for place in places if place for name, value in (place.body.get("tags") or {}).items()}
    told = {"name": one.name, "vm": one.vm, "power": str(one.power), "address": one.address, "boots": one.boots}
    return {**told, "tags": tags}


def find_vm(cloud: CloudState, name: str) -> Resource:
    """By its id, or by its name where that is unique."""
    vms = [
        one
        for one in cloud.all("Microsoft.Compute/virtualMachines")
        if name.lower() in (one.id.lower(), one.name.lower())
    ]
    if len(vms) != 1:
        raise Refused(404, "NotFound", f"{len(vms)} VMs are called `{name}`")
    return vms[0]


def _error(status: int, message: str) -> Response:
    return Response(status, {"error": {"code": "twin", "message": message}})
