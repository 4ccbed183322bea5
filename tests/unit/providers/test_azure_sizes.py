"""The requested size is available: Azure's list of sizes, and the image and disk that match them."""

from __future__ import annotations

import base64
import re
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from twinasks import KEY, REGION, Asker, wall

from stoker.errors import JobInvalid
from stoker.model.node import Need, Offer
from stoker.providers.azure import template
from stoker.providers.azure.account.account import Account
from stoker.providers.azure.market.listed import read
from stoker.providers.azure.market.prices import Catalogue
from stoker.providers.azure.market.sizes import AzureSize, fits, gpus_of, model_of, read_sizes, retired
from stoker.providers.azure.naming import NodePlace
from stoker.providers.azure.template import MachineChoice, NodeSite, deployment
from stoker.twin.market import catalog
from stoker.twin.refusal import Refused
from stoker.twin.web import retail
from stoker.twin.web.server import WebRequest

CONTRIBUTOR = "b24988ac-6180-42a0-ab88-20f7382dd24c"
CPU, GPU = Need(), Need(gpus=1)


@pytest.fixture
def azure() -> Asker:
    azure = Asker()
    azure.group()
    return azure


def sizes(azure: Asker, region: str = REGION) -> list[AzureSize]:
    listed = azure.ask("GET", "/providers/Microsoft.Compute/skus", _filter=f"location eq '{region}'").body["value"]
    return read_sizes(listed, region)


def accepted(azure: Asker, size: AzureSize, *, spot: bool) -> None:
    """The exact deployment of the provider is sent to the twin, which refuses what Azure refuses."""
    machine = MachineChoice(size.name, size.region, spot, traits=size)
    place = NodePlace("g")
    site = NodeSite(Account(azure.cloud.subscription), place, CONTRIBUTOR, place.group_id(azure.cloud.subscription))
    body = {"properties": deployment(site, machine, {}, KEY)}
    body["properties"]["parameters"] = {"customData": {"value": base64.b64encode(b"#cloud-config").decode()}}
    try:
        azure.ask("POST", azure.inside("Microsoft.Resources/deployments/d/validate"), body)
    except Refused as refusal:
        raise AssertionError(f"{size.name}: {refusal.details[0]['code']}: {refusal.details[0]['message']}") from refusal


@pytest.mark.parametrize("spot", [True, False])
@pytest.mark.parametrize("need", [CPU, GPU, Need(gpus=4), Need(gpus=1, gpu="A10"), Need(gpus=8, gpu="MI300X")])
def test_azure_takes_every_size_that_fits_a_need(azure: Asker, need: Need, spot: bool) -> None:
    families = {size.family for size in catalog.SIZES.values()}
    quotas = {f"{REGION}/{name}".lower(): 10_000 for name in ("cores", "lowPriorityCores", *families)}
    azure.cloud = replace(azure.cloud, quotas=quotas)
    fitting = [size for size in sizes(azure) if fits(size, replace(need, spot=spot))]
    assert fitting
    for size in fitting:
        accepted(azure, size, spot=spot)


@pytest.mark.parametrize("name", ["Standard_D2ps_v5", "Standard_A2_v2", "Standard_D2_v5", "Standard_NV6ads_A10_v5"])
def test_a_size_that_is_named_gets_the_image_and_the_disk_that_it_can_boot(azure: Asker, name: str) -> None:
    (size,) = [one for one in sizes(azure) if fits(one, Need(size=name, spot=True))]
    accepted(azure, size, spot=True)


def test_the_traps_of_the_list_are_cheaper_than_what_is_offered(azure: Asker) -> None:
    """Else the test above would prove little."""
    known = sizes(azure)
    cheapest = {need: cheapest_of(azure, [one for one in known if fits(one, need)]) for need in (CPU, GPU)}
    assert cheapest == {CPU: "Standard_D2as_v5", GPU: "Standard_NC4as_T4_v3"}
    dearer = catalog.SIZES["standard_d2as_v5"].usd_per_hour
    cheaper = {size.name for size in catalog.SIZES.values() if size.usd_per_hour <= dearer} - {"Standard_D2as_v5"}
    assert cheaper >= {"Standard_D2ps_v5", "Standard_A1_v2", "Basic_A0", "Standard_B1s", "Standard_DC2as_v5"}
    gpu = catalog.SIZES["standard_nc4as_t4_v3"].usd_per_hour
    assert all(catalog.SIZES[name].usd_per_hour < gpu for name in ("standard_nv6ads_a10_v5", "standard_nv4ads_v710_v5"))


def cheapest_of(azure: Asker, fitting: list[AzureSize]) -> str:
    listing = prices(azure)
    return min(fitting, key=lambda size: listing.machine(size.name, spot=False) or Decimal(999)).name


def prices(azure: Asker) -> Any:
    """All rows of the list, read as the provider reads them."""
    return read(rows(azure), wall(0.0), "USD")


def rows(azure: Asker) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = []
    skip = 0
    while True:
        query = {"$filter": f"armRegionName eq '{REGION}'", "$skip": str(skip)}
        request = WebRequest("GET", "/api/retail/prices", query, {}, b"", "https://twin")
        page = retail.answer(azure.cloud, request, 0.0, wall).body
        items += page["Items"]
        skip += 100
        if not page["NextPageLink"]:
            return items


def test_the_list_of_the_twin_mixes_what_azures_list_mixes(azure: Asker) -> None:
    """Else the test below would prove little."""
    own = [one for one in rows(azure) if one["armSkuName"] == "Standard_D2s_v5"]
    for word, value in (
        ("productName", "Windows"),
        ("productName", "Cloud Services"),
        ("productName", "CloudServices"),
        ("skuName", " Low Priority"),
        ("type", "Reservation"),
        ("type", "DevTestConsumption"),
    ):
        assert any(value in one[word] for one in own), value
    assert any(one["productName"].endswith(" Win") or one["skuName"].endswith(" Win") for one in own)
    assert any(not one["isPrimaryMeterRegion"] for one in own)
    assert any(one.get("savingsPlan") for one in own)
    assert any("Dedicated Host" in one["productName"] for one in rows(azure))


def test_a_price_is_that_of_a_linux_machine_whatever_else_has_its_name(azure: Asker) -> None:
    listing = prices(azure)
    for size in catalog.sizes_in(REGION):
        assert float(listing.machines[size.name.lower()]) == catalog.on_demand_usd(size, REGION), size.name
    assert "spot basic_a0" not in listing.machines
    assert listing.disks["P10"] == Decimal("19.71")
    assert listing.disks["E10"] == Decimal("9.6")


def sku(name: str, *restrictions: dict[str, Any], **has: str) -> dict[str, Any]:
    capabilities = [{"name": key, "value": value} for key, value in has.items()]
    place = {"location": "eastus", "zones": ["2", "1", "3"]}
    told = {"name": name, "resourceType": "virtualMachines", "family": "f", "capabilities": capabilities}
    return told | {"locationInfo": [place], "restrictions": list(restrictions)}


def test_sizes_are_read_from_what_azure_says_of_them() -> None:
    full = {"GPUs": "1", "LowPriorityCapable": "True", "PremiumIO": "True", "HyperVGenerations": "V2"}
    zones = {"type": "Zone", "values": ["eastus"], "restrictionInfo": {"locations": ["eastus"], "zones": ["3"]}}
    listed = [
        sku("Standard_NC24ads_A100_v4", zones, vCPUs="24", MemoryGB="220", AcceleratedNetworkingEnabled="True", **full),
        sku("Standard_E8-4s_v5", vCPUs="8", vCPUsAvailable="4", MemoryGB="64", CpuArchitectureType="x64"),
        sku("Standard_D2s_v5", {"type": "Location", "values": ["eastus"]}, vCPUs="2", MemoryGB="8"),
        sku("Standard_NC6s_v3", vCPUs="6", MemoryGB="112", GPUs="1"),
        sku("Standard_NV4ads_V710_v5", vCPUs="4", MemoryGB="14", GPUs="0.167"),
        {"name": "disk", "resourceType": "disks"},
    ]
    first, second, part = read_sizes(listed, "eastus")
    gpus = gpus_of("Standard_NC24ads_A100_v4", 1, 24)
    known = AzureSize("Standard_NC24ads_A100_v4", "f", 24, 220.0, "eastus", True, gpus, ("1", "2"), accelerated=True)
    assert first == known
    assert (part.gpus.count, part.gpus.whole) == (1, 0)
    assert (second.cpus, second.premium, second.generation_2, second.spot) == (4, False, False, False)


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("Standard_NC6s_v3", "V100"),
        ("Standard_NC4as_T4_v3", "T4"),
        ("Standard_ND96asr_v4", "A100"),
        ("Standard_NV4as_v4", "MI25"),
        ("Standard_NG8ads_V620_v1", "V620"),
        ("Standard_NV4ads_V710_v5", "V710"),
        ("Standard_D2", ""),
    ],
)
def test_a_gpu_is_known_by_the_name_of_its_size(name: str, model: str) -> None:
    assert model_of(name) == model


@pytest.mark.parametrize(
    ("name", "cpus", "share", "whole"),
    [
        ("Standard_NV6ads_A10_v5", 6, Fraction(1, 6), 0),
        ("Standard_NV18ads_A10_v5", 18, Fraction(1, 2), 0),
        ("Standard_NV36ads_A10_v5", 36, Fraction(1), 1),
        ("Standard_NV4ads_V710_v5", 4, Fraction(1, 6), 0),
        ("Standard_NV24ads_V710_v5", 24, Fraction(1), 1),
        ("Standard_NC4as_T4_v3", 4, Fraction(1), 1),
    ],
)
def test_a_part_of_a_gpu_is_no_gpu(name: str, cpus: int, share: Fraction, whole: int) -> None:
    gpus = gpus_of(name, 1, cpus)
    assert (gpus.share, gpus.whole) == (share, whole)


@pytest.mark.parametrize(
    ("name", "over"),
    [
        ("Standard_NC6s_v3", True),
        ("Standard_NC24rs_v3", True),
        ("Standard_NC6", True),
        ("Standard_NC6_Promo", True),
        ("Standard_NV4as_v4", True),
        ("Standard_NV12s_v3", True),
        ("Standard_ND40rs_v2", True),
        ("Standard_NC4as_T4_v3", False),
        ("Standard_NV36ads_A10_v5", False),
        ("Standard_ND96asr_v4", False),
        ("Standard_NC24ads_A100_v4", False),
        ("Standard_D2s_v5", False),
    ],
)
def test_families_that_azure_has_ended_are_known(name: str, over: bool) -> None:
    assert retired(name) is over


def size(name: str, cpus: int = 8, gpus: int = 0, **more: Any) -> AzureSize:
    given = {"memory_gb": 32.0, "region": "eastus", "spot": True, "gpus": gpus_of(name, gpus, cpus), **more}
    return AzureSize(name, "f", cpus, **given)


def test_a_need_is_met_by_enough_of_everything_and_no_gpu_that_nobody_asked_for() -> None:
    usual = size("Standard_D8s_v5")
    graphics = size("Standard_NC24ads_A100_v4", 24, 1, spot=False)
    assert fits(usual, Need(cpus=8, memory_gb=32, spot=True))
    assert not fits(usual, Need(cpus=9))
    assert not fits(graphics, Need(cpus=8))
    assert fits(graphics, Need(gpus=1, gpu="a100"))
    assert not fits(graphics, Need(gpus=1, spot=True))
    assert not fits(graphics, Need(size="standard_nc24ads_a100_v4", spot=True)), "Azure does not offer it as spot"
    assert fits(graphics, Need(size="standard_nc24ads_a100_v4"))


def test_a_gpu_is_a_whole_one_of_nvidias_unless_another_is_named() -> None:
    sixth, amd = size("Standard_NV6ads_A10_v5", 6, 1), size("Standard_ND96isr_MI300X_v5", 96, 8)
    assert not fits(sixth, GPU)
    assert not fits(sixth, Need(gpus=1, gpu="A10"))
    assert not fits(sixth, CPU), "nor is it a machine without GPUs"
    assert fits(sixth, Need(size="Standard_NV6ads_A10_v5"))
    assert not fits(amd, GPU)
    assert not fits(size("Standard_NV24ads_V710_v5", 24, 1), GPU)
    assert not fits(size("Standard_NV8_Q9_v7", 8, 1), GPU), "it may be anybody's, and a part of one"
    assert fits(size("Standard_NV8_Q9_v7", 8, 1), Need(size="Standard_NV8_Q9_v7"))
    assert fits(amd, Need(gpus=8, gpu="MI300X"))


def test_a_confidential_size_that_is_named_is_refused_with_a_message() -> None:
    """It boots from no image and no disk of a node: nobody pays to find that out."""
    secret = size("Standard_DC2as_v5", confidential=True)
    assert not fits(secret, CPU)
    with pytest.raises(JobInvalid) as refused:
        fits(secret, Need(size="standard_dc2as_v5"))
    (problem,) = refused.value.problems
    assert (problem.field, problem.found) == ("size", "`Standard_DC2as_v5`")
    assert problem.expected.startswith("a size that is not confidential")


@pytest.mark.parametrize("trap", [{"architecture": "Arm64"}, {"generation_2": False}, {"premium": False}])
def test_a_size_that_is_unlike_the_others_is_had_by_its_name_alone(trap: dict[str, Any]) -> None:
    unlike = size("Standard_X2", **trap)
    assert not fits(unlike, CPU)
    assert fits(unlike, Need(size="Standard_X2"))


@pytest.mark.parametrize(
    ("given", "image", "driver"),
    [
        (size("Standard_D8s_v5"), template.PLAIN, False),
        (size("Standard_NC4as_T4_v3", 4, 1), template.HPC, False),
        (size("Standard_NV36ads_A10_v5", 36, 1), template.PLAIN, True),
        (size("Standard_ND96isr_MI300X_v5", 96, 8), template.ROCM, False),
        (size("Standard_D2ps_v5", architecture="Arm64"), template.ARM, False),
        (size("Standard_A2_v2", generation_2=False, premium=False), template.GENERATION_1, False),
    ],
)
def test_the_image_is_of_the_sizes_processor_generation_and_gpu(given: AzureSize, image: str, driver: bool) -> None:
    assert (template.image_of(given), template.needs_driver(given, "")) == (image, driver)
    assert not template.needs_driver(given, "/subscriptions/s/images/own"), "an image of one's own has its driver"
    assert template.needs_driver(given, template.PLAIN) is given.gpus.nvidia


def test_an_image_is_named_by_its_four_words_or_its_id() -> None:
    assert template.reference("a:b:c:latest") == {"publisher": "a", "offer": "b", "sku": "c", "version": "latest"}
    assert template.reference("/subscriptions/s/images/i") == {"id": "/subscriptions/s/images/i"}


class Prices:
    def beside_per_hour(self, *_: Any, **__: Any) -> Decimal:
        return Decimal("0.027")


class Lists:
    def skus(self, _: str) -> list[Any]:
        return []


@pytest.mark.parametrize(("most", "sent"), [("0.1234567", "0.09645"), ("0.1", "0.07300"), ("0.01", "0.00001")])
def test_the_maximum_price_sent_to_azure_is_rounded_down_to_five_decimals(most: str, sent: str) -> None:
    catalogue = Catalogue(Account("s"), Lists(), Prices())  # type: ignore[arg-type]
    offer = Offer("azure", "Standard_D2s_v5", "eastus", Decimal(1), spot=True)
    assert catalogue.most_for_machine(offer, Decimal(most)) == Decimal(sent)
    assert catalogue.most_for_machine(offer, None) is None


# Dsv2 to Dsv4, Fsv2, B and NC v3: new subscriptions cannot have them.
_CLOSED = re.compile(r"Standard_(?:B\d+\w*|DS?\d+\w*_v[234]|F\d+\w*_v2|NC\d+r?s_v3)\b")


def test_no_page_example_or_default_names_a_size_that_new_subscriptions_cannot_have() -> None:
    root = Path(__file__).parents[3]
    pages = [root / "README.md", *(root / "docs").rglob("*.md"), *(root / "examples").rglob("*.*")]
    pages += [path for path in (root / "src").rglob("*.py") if "twin" not in path.parts]
    texts = {path: path.read_text(encoding="utf-8") for path in pages if path.suffix in (".md", ".py", ".yaml", ".yml")}
    assert len(texts) > 100
    assert {path.name: found for path, text in texts.items() if (found := _CLOSED.findall(text))} == {}
    assert _CLOSED.search("Standard_F4s_v2")
    assert not _CLOSED.search("Standard_NC4as_T4_v3 Standard_D4s_v5")
