"""Public addresses are counted and refused as Azure does: by kind, per region, with its codes and words."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from twinasks import REGION, Asker

from stoker.twin.market.prices import ADDRESSES
from stoker.twin.refusal import Refused

STANDARD = "IPv4StandardSkuPublicIpAddresses"


@pytest.fixture
def azure() -> Asker:
    asker = Asker()
    asker.group()
    return asker


def limited(azure: Asker, **most: int) -> None:
    azure.cloud = replace(azure.cloud, quotas={f"{REGION}/{name}".lower(): limit for name, limit in most.items()})


def address(azure: Asker, name: str, sku: str = "Standard", region: str = REGION, **properties: Any) -> None:
    given = {"publicIPAllocationMethod": "Static", **properties}
    azure.ask(
        "PUT", f"{azure.inside(ADDRESSES)}/{name}", {"location": region, "sku": {"name": sku}, "properties": given}
    )


def usages(azure: Asker, region: str = REGION) -> dict[str, tuple[int, int]]:
    told = azure.ask("GET", f"/providers/Microsoft.Network/locations/{region}/usages").body["value"]
    assert all(one["unit"] == "Count" and one["id"].endswith(f"/usages/{one['name']['value']}") for one in told)
    return {one["name"]["value"]: (one["currentValue"], one["limit"]) for one in told}


def test_usages_count_addresses_by_kind_and_the_parts_of_networks(azure: Asker) -> None:
    azure.network()
    address(azure, "one")
    address(azure, "two", sku="Basic", publicIPAllocationMethod="Dynamic")
    address(azure, "far", region="eastus")
    counts = usages(azure)
    assert counts[STANDARD] == (1, 20)
    assert counts["StaticPublicIPAddresses"] == (1, 20)
    assert counts["PublicIPAddresses"] == (2, 20)
    assert counts["VirtualNetworks"][0] == 1
    assert usages(azure, "eastus")[STANDARD] == (1, 20)


@pytest.mark.parametrize(
    ("name", "code", "words"),
    [
        (STANDARD, "IPv4StandardSkuPublicIpCountLimitReached", "1 IPv4 Standard SKU public IP addresses"),
        ("StaticPublicIPAddresses", "StaticPublicIPCountLimitReached", "1 public IP addresses with static allocation"),
        ("PublicIPAddresses", "PublicIPCountLimitReached", "1 public IP addresses for this subscription"),
    ],
)
def test_one_too_many_is_refused_with_the_code_of_its_kind(azure: Asker, name: str, code: str, words: str) -> None:
    limited(azure, **{name: 1})
    address(azure, "one")
    address(azure, "one")  # the same again is not a second one
    with pytest.raises(Refused) as refused:
        address(azure, "two")
    assert (refused.value.status, refused.value.code) == (400, code)
    assert f"Cannot create more than {words}" in refused.value.message
    azure.ask("DELETE", f"{azure.inside(ADDRESSES)}/one")
    azure.pass_time(2)
    address(azure, "two")


def test_a_limit_of_one_kind_does_not_refuse_another(azure: Asker) -> None:
    limited(azure, **{STANDARD: 0})
    address(azure, "six", publicIPAddressVersion="IPv6")
    address(azure, "basic", sku="Basic")
    with pytest.raises(Refused):
        address(azure, "four")
