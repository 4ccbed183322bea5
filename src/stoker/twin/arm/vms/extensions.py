"""Extensions of a VM: a custom script really runs in the machine; a driver is installed where the size has a GPU."""

from __future__ import annotations

import base64
import gzip
import shlex
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from stoker.twin.arm import resources
from stoker.twin.arm.ask import ArmAnswer, Ask, accepted, begin, needed, page, route, shown
from stoker.twin.arm.vms.actions import not_running
from stoker.twin.market import catalog, prices
from stoker.twin.refusal import Refused, invalid, not_found, unreadable
from stoker.twin.state import CloudState, MachinePower, Resource
from stoker.twin.time import power
from stoker.twin.time.power import VMS

EXTENSIONS = f"{VMS}/extensions"
_IMAGES = "Microsoft.Compute/locations/publishers/artifacttypes/types"
_VERSIONS = f"{_IMAGES}/versions"
_TAKES_S = 0.5

# By publisher and type, with the newest version.
KNOWN = {
    ("Microsoft.Azure.Extensions", "CustomScript"): "2.1.13",
    ("Microsoft.HpcCompute", "NvidiaGpuDriverLinux"): "1.11.0.0",
    ("Microsoft.HpcCompute", "AmdGpuDriverLinux"): "1.0.0.0",
    ("Microsoft.Azure.ActiveDirectory", "AADSSHLoginForLinux"): "1.0.2836.1",
    ("Microsoft.OSTCExtensions", "VMAccessForLinux"): "1.5.14",
    ("Microsoft.Azure.Monitor", "AzureMonitorLinuxAgent"): "1.33.2",
}


@route("PUT", EXTENSIONS)
def put(cloud: CloudState, ask: Ask) -> tuple[CloudState, ArmAnswer]:
    """The extension itself checks its settings, in the machine: a wrong one fails the operation."""
    vm = cloud.find(ask.target.parent.id)
    resources.require_group(cloud, ask)
    instance = cloud.instance(vm.id) if vm else None
    if vm is None or instance is None:
        raise not_found(VMS, ask.target.names[0], ask.target.group)
    if instance.power not in (MachinePower.RUNNING, MachinePower.STARTING):
        raise not_running()
    given = ask.body.get("properties", {})
    _check(cloud, ask, vm, given)
    there = cloud.find(ask.id)
    visible = {key: value for key, value in given.items() if key != "protectedSettings"}
    extension = Resource(there.id if there else ask.id, {"location": vm.region}, ask.now)
    extension = extension.having(**visible, provisioningState="Creating")
    cloud, operation = begin(cloud.put(extension), ask, "put", _TAKES_S, error=_refusal(vm, given))
    work = {"customscript": lambda: script(given), "nvidiagpudriverlinux": lambda: installing(vm)}
    if not operation.error and (text := work.get(str(given["type"]).lower())):
        order = power.chore(cloud, "run", instance, ask.now, script=text(), form="extension")
        cloud = power.begin(cloud, operation, order)
    return cloud, accepted(ask, operation, extension.answer(), status=200 if there else 201)


def _check(cloud: CloudState, ask: Ask, vm: Resource, given: Mapping[str, Any]) -> None:
    publisher, kind = str(needed(given, "publisher")), str(needed(given, "type"))
    version = str(needed(given, "typeHandlerVersion"))
    for word in ("settings", "protectedSettings"):
        if not isinstance(given.get(word, {}), Mapping):
            raise unreadable(f"'{word}' of an extension must be an object. Path 'properties.{word}'.")
    newest = known(publisher, kind)
    if newest is None or not newest.startswith(version.split(".")[0] + "."):
        nearest = get_close_matches(kind, [name for _, name in KNOWN], n=1, cutoff=0.0)[0]
        raise Refused(
            404,
            "ArtifactNotFound",
            f"The VM extension with publisher '{publisher}' and type '{kind}' and version '{version}' could not be "
            "found; "
            f"the nearest that the twin has is '{nearest}'.",
        )
    for one in cloud.below(vm.id):
        if str(one.properties.get("type", "")).lower() == kind.lower() and one.id.lower() != ask.id.lower():
            raise invalid(
                f"On resource '{vm.name}', extension '{ask.target.name}' specified has already been added: multiple "
                "VMExtensions "
                "per handler are not supported for OS type 'Linux'.",
                "BadRequest",
            )


def known(publisher: str, kind: str) -> str | None:
    found = {(one.lower(), other.lower()): version for (one, other), version in KNOWN.items()}
    return found.get((publisher.lower(), kind.lower()))


def _refusal(vm: Resource, given: Mapping[str, Any]) -> Mapping[str, Any]:
    """Why the extension itself fails; empty where it succeeds."""
    settings = _settings(given)
    match str(given["type"]).lower():
        case "nvidiagpudriverlinux" if prices.size_of(vm).gpu not in NVIDIA:
            return _failed(vm, given, "No NVIDIA GPU was found on this machine: the VM size has none.")
        case "amdgpudriverlinux" if prices.size_of(vm).gpu in ("", *NVIDIA):
            return _failed(vm, given, "No AMD GPU was found on this machine: the VM size has none.")
        case "customscript" if bool(settings.get("commandToExecute")) == bool(settings.get("script")):
            both = "were both specified" if settings.get("script") else "were both not specified"
            return _failed(
                vm, given, f"invalid configuration: 'commandToExecute' and 'script' {both}: give one of them"
            )
        case "customscript" if not isinstance(settings.get("fileUris") or [], list):
            return _failed(vm, given, "invalid configuration: 'fileUris' must be a list")
        case "customscript" if settings.get("script") and _decoded(str(settings["script"])) is None:
            return _failed(vm, given, "invalid configuration: 'script' must be base64, or gzip in base64")
    return {}


def _failed(vm: Resource, given: Mapping[str, Any], why: str) -> dict[str, str]:
    message = (
        f"VM has reported a failure when processing extension '{given['type']}' (publisher '{given['publisher']}' "
        "and type "
        f"'{given['type']}') of '{vm.name}'. Error message: '{why}'."
    )
    return {"code": "VMExtensionProvisioningError", "message": message}


def _settings(given: Mapping[str, Any]) -> dict[str, Any]:
    return {**(given.get("settings") or {}), **(given.get("protectedSettings") or {})}


def script(given: Mapping[str, Any]) -> str:
    """What runs in the machine: files are downloaded into a new folder, where the command then runs."""
    settings = _settings(given)
    lines = ["set -e", 'place="$(mktemp -d)"', 'cd "$place"']
    for url in settings.get("fileUris") or ():
        lines.append(f"python3 -c {shlex.quote(_FETCH)} {shlex.quote(str(url))}")
    if settings.get("script"):
        lines.append(f"echo {shlex.quote(str(settings['script']))} | base64 -d > script.sh")
        if _zipped(str(settings["script"])):
            lines.append("mv script.sh script.gz; gunzip -c script.gz > script.sh")
        lines.append("chmod +x script.sh; exec ./script.sh")
    else:
        lines.append(f"exec sh -c {shlex.quote(str(settings['commandToExecute']))}")
    return "\n".join(lines)


_FETCH = (
    "import os, sys, urllib.parse, urllib.request; "
    "name = os.path.basename(urllib.parse.urlsplit(sys.argv[1]).path); "
    "data = urllib.request.urlopen(sys.argv[1], timeout=60).read(); "
    "open(name, 'wb').write(data); os.chmod(name, 0o755)"
)


def _decoded(text: str) -> bytes | None:
    try:
        data = base64.b64decode(text, validate=True)
        return gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
    except (ValueError, OSError, EOFError):
        return None


def _zipped(text: str) -> bool:
    return base64.b64decode(text)[:2] == b"\x1f\x8b"


@route("GET", EXTENSIONS)
def get(cloud: CloudState, ask: Ask) -> tuple[CloudState, ArmAnswer]:
    return cloud, ArmAnswer(200, resources.require(cloud, ask).answer())


@route("GET", VMS, "extensions")
def list_all(cloud: CloudState, ask: Ask) -> tuple[CloudState, ArmAnswer]:
    return cloud, page(
        ask, shown([one for one in cloud.below(resources.require(cloud, ask).id) if one.kind == EXTENSIONS])
    )


@route("GET", "Microsoft.Compute/locations", "publishers")
def publishers(cloud: CloudState, ask: Ask) -> tuple[CloudState, ArmAnswer]:
    names = sorted({publisher for publisher, _ in KNOWN} | {image.publisher for image in catalog.IMAGES.values()})
    return cloud, ArmAnswer(200, [_listed(ask, "publishers", name) for name in names])


@route("GET", "Microsoft.Compute/locations/publishers/artifacttypes", "types")
def types(cloud: CloudState, ask: Ask) -> tuple[CloudState, ArmAnswer]:
    publisher = ask.target.names[1].lower()
    return cloud, ArmAnswer(200, [_listed(ask, "types", kind) for one, kind in KNOWN if one.lower() == publisher])


def _listed(ask: Ask, word: str, name: str) -> dict[str, str]:
    return {"id": f"{ask.id}/{word}/{name}", "name": name, "location": ask.target.names[0]}


@route("GET", _IMAGES, "versions")
def versions(cloud: CloudState, ask: Ask) -> tuple[CloudState, ArmAnswer]:
    """What `az vm extension set` requests first."""
    return cloud, ArmAnswer(200, [_listed(ask, "versions", _version(ask))])


@route("GET", _VERSIONS)
def version(cloud: CloudState, ask: Ask) -> tuple[CloudState, ArmAnswer]:
    _version(ask)
    properties = {"operatingSystem": "Linux", "computeRole": "IaaS", "vmScaleSetEnabled": True}
    told = {"id": ask.id, "name": ask.target.name, "location": ask.target.names[0]}
    return cloud, ArmAnswer(200, {**told, "properties": {**properties, "supportsMultipleExtensions": False}})


def _version(ask: Ask) -> str:
    _, publisher, _, kind, *_ = ask.target.names
    newest = known(publisher, kind)
    if newest is None:
        raise Refused(404, "NotFound", f"Artifact: VMExtension was not found: {publisher}.{kind}.")
    return newest


resources.deletable(EXTENSIONS)


# GPU drivers: which image or extension installs one. The program in the machine only lists GPUs; none exists.

NVIDIA = ("T4", "A10", "A100", "H100", "V100")
# azhpc-images#406 and #398: the HPC image has no driver that works for V100 and A10.
_OF_HPC_IMAGE = ("T4", "A100", "H100")
_HPC, _ROCM = "ubuntu-hpc", "rocm"
_PROGRAM = "/usr/local/sbin/nvidia-smi"


def in_image(vm: Resource) -> bool:
    image: Mapping[str, Any] = vm.properties["storageProfile"].get("imageReference") or {}
    offer, sku = (str(image.get(word, "")).lower() for word in ("offer", "sku"))
    return offer == _HPC and _ROCM not in sku and prices.size_of(vm).gpu in _OF_HPC_IMAGE


def installing(vm: Resource) -> str:
    """A script that installs `nvidia-smi` on the machine."""
    size = prices.size_of(vm)
    listed = "\n".join(f"GPU {number}: NVIDIA {size.gpu} (a twin has none)" for number in range(size.gpus))
    program = f"#!/bin/sh\ncat <<'END'\n{listed}\nEND\n"
    return "\n".join(
        [
            "set -e",
            f"mkdir -p $(dirname {_PROGRAM})",
            f"printf %s {shlex.quote(program)} > {_PROGRAM}.part",
            f"chmod 755 {_PROGRAM}.part",
            f"mv {_PROGRAM}.part {_PROGRAM}",
        ]
    )
