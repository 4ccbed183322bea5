"""Enum values that Azure accepts in the body of a VM, and required fields.

Rules for the body of a VM: names, logins, prices, and an image and disks that its size supports.

Codes and messages are Azure's; their sources are in the table of docs/concepts/twin.md.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Mapping
from typing import Any

from stoker.twin.arm.ask import Ask, needed
from stoker.twin.arm.network import NICS
from stoker.twin.arm.vms import parts
from stoker.twin.market import catalog
from stoker.twin.market.catalog import TwinSize
from stoker.twin.refusal import Refused, conflict, invalid
from stoker.twin.state import CloudState

_DELETE = ("Delete", "Detach")
_SYSTEM = ("FromImage", "Attach", "Empty", "Copy", "Restore")
_SECURITY = ("TrustedLaunch", "ConfidentialVM", "Standard")
_IDENTITIES = ("SystemAssigned", "UserAssigned", "SystemAssigned, UserAssigned", "SystemAssigned,UserAssigned", "None")
_MOST_LUN = 63


def check_words(body: Mapping[str, Any]) -> None:
    given = body["properties"]
    for where, word, known in _fields(body):
        if word is not None and str(word).lower() not in [one.lower() for one in known]:
            raise invalid(f"The value '{word}' of parameter {where} is not valid: {', '.join(known)} are.")
    for disk in given["storageProfile"].get("dataDisks") or ():
        _check_data_disk(disk)
    if given["networkProfile"].get("networkInterfaceConfigurations"):
        needed(given["networkProfile"], "networkApiVersion")


def _check_data_disk(disk: Mapping[str, Any]) -> None:
    lun = disk.get("lun")
    if lun is None or not 0 <= int(lun) <= _MOST_LUN:
        raise invalid(f"The value '{lun}' of parameter dataDisk.lun is not valid: 0 to {_MOST_LUN} are.")
    if str(needed(disk, "createOption")).lower() == "empty":
        needed(disk, "diskSizeGB")


def _fields(body: Mapping[str, Any]) -> Iterator[tuple[str, Any, tuple[str, ...]]]:
    """Each with its path, its value, and the allowed values."""
    given = body["properties"]
    system = given["storageProfile"].get("osDisk") or {}
    if system:
        yield "osDisk.createOption", needed(system, "createOption"), _SYSTEM
        yield "osDisk.deleteOption", system.get("deleteOption"), _DELETE
    for disk in given["storageProfile"].get("dataDisks") or ():
        yield "dataDisk.createOption", disk.get("createOption"), _SYSTEM
        yield "dataDisk.deleteOption", disk.get("deleteOption"), _DELETE
    for word in ("networkInterfaces", "networkInterfaceConfigurations"):
        for card in given["networkProfile"].get(word) or ():
            yield f"{word}.deleteOption", (card.get("properties") or {}).get("deleteOption"), _DELETE
    yield "securityProfile.securityType", (given.get("securityProfile") or {}).get("securityType"), _SECURITY
    yield "identity.type", (body.get("identity") or {}).get("type"), _IDENTITIES


_FORBIDDEN_USERS = frozenset(
    [
        "1",
        "123",
        "a",
        "actuser",
        "adm",
        "admin",
        "admin1",
        "admin2",
        "administrator",
        "aspnet",
        "backup",
        "console",
        "david",
        "guest",
        "john",
        "owner",
        "root",
        "server",
        "sql",
        "support",
        "support_388945a0",
        "sys",
        "test",
        "test1",
        "test2",
        "test3",
        "user",
        "user1",
        "user2",
        "user3",
        "user4",
        "user5",
    ]
)
_USER = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}$")
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,62}[A-Za-z0-9_])?$")
_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,62}[A-Za-z0-9])?$")
_MOST_CUSTOM_DATA = 65_535
_PRIORITIES, _POLICIES = ("regular", "low", "spot"), ("deallocate", "delete")
_STANDARD_SINCE = "2025-11-01"
_PLACES = {
    "availabilitySet": "availability sets",
    "host": "dedicated hosts",
    "hostGroup": "dedicated hosts",
}
_DISKS = ("Standard_LRS", "StandardSSD_LRS", "StandardSSD_ZRS", "Premium_LRS", "Premium_ZRS", "PremiumV2_LRS")


def check(cloud: CloudState, ask: Ask, size: TwinSize, region: str) -> None:
    """Refuses what Azure would, before anything is created."""
    given = ask.body["properties"]
    if not _NAME.match(ask.target.name):
        raise invalid(
            f"The value '{ask.target.name}' of parameter vmName is not valid: Linux VM names are 1 to 64 letters, "
            "digits, "
            "'.', '-' and '_', and neither begin with a sign nor end with '.' or '-'."
        )
    check_place(given)
    parts.check(cloud, ask.body, region)
    check_words(ask.body)
    _check_spot(given, size)
    _check_storage(given, size)
    _check_security(given, size, ask.version)
    _check_interfaces(cloud, given, size, region)
    if not _attaches_system(given):
        _check_login(given)


def _check_spot(given: Mapping[str, Any], size: TwinSize) -> None:
    priority, policy = str(given.get("priority", "Regular")), str(given.get("evictionPolicy", "Deallocate"))
    if priority.lower() not in _PRIORITIES:
        raise invalid(f"The value '{priority}' of parameter priority is not valid: Regular, Low and Spot are.")
    if policy.lower() not in _POLICIES:
        raise invalid(f"The value '{policy}' of parameter evictionPolicy is not valid: Deallocate and Delete are.")
    if priority.lower() != "spot":
        return
    if not size.spot:
        raise conflict(
            f"Azure Spot is not supported for this VM size {size.name}.", "AzureSpotIsNotSupportedForThisVMSize"
        )
    check_max_price(given)
    terminates = (given.get("scheduledEventsProfile") or {}).get("terminateNotificationProfile") or {}
    if terminates.get("enable"):
        raise invalid(
            "Terminate notifications cannot be enabled on Spot instances. Remove "
            "'scheduledEventsProfile.terminateNotificationProfile' from the request."
        )


def check_max_price(given: Mapping[str, Any]) -> None:
    most = (given.get("billingProfile") or {}).get("maxPrice", -1)
    if not isinstance(most, int | float) or isinstance(most, bool) or (most <= 0 and most != -1):
        raise conflict(
            "Invalid max price value. The only supported values for max price are -1 or a decimal greater than zero. "
            "Max price value of -1 indicates the Azure Spot VM won't be evicted for price reasons.",
            "MaxPriceValueInvalid",
        )
    if round(most, 5) != most:
        raise conflict(
            f"Invalid max price value '{most}'. A max price can have at most five decimal places.",
            "MaxPriceValueInvalid",
        )


def _check_storage(given: Mapping[str, Any], size: TwinSize) -> None:
    storage = given["storageProfile"]
    system = storage.get("osDisk") or {}
    for disk in (system, *(storage.get("dataDisks") or ())):
        _check_disk(disk, size)
    if _attaches_system(given):
        return
    reference = needed(given, "storageProfile", "imageReference")
    if reference.get("id") or reference.get("sharedGalleryImageId") or reference.get("communityGalleryImageId"):
        return  # a custom image: its contents are unknown
    image = catalog.named(reference)
    if image is None:
        words = ":".join(str(reference.get(word, "")) for word in ("publisher", "offer", "sku", "version"))
        raise Refused(
            404,
            "PlatformImageNotFound",
            f"The platform image '{words}' is not available. Verify that all fields in the storage profile are "
            "correct. "
            "For more details about storage profile information, please refer to https://aka.ms/storageprofile",
        )
    _check_boots(image, size)
    if (wanted := system.get("diskSizeGB")) and int(wanted) < image.disk_gb:
        raise invalid(
            f"The specified disk size {wanted} GB is smaller than the size of the corresponding disk in the VM image: "
            f"{image.disk_gb} GB. This is not allowed. Please choose equal or greater size or do not specify an "
            "explicit "
            "size.",
            "ResizeDiskError",
        )


def _check_boots(image: catalog.Image, size: TwinSize) -> None:
    if image.architecture != size.architecture:
        raise invalid(
            f"Cannot create a VM of size '{size.name}' because this VM size only supports a CPU Architecture of "
            f"'{size.architecture}', but an image or disk with CPU Architecture '{image.architecture}' was given. "
            "Please "
            "check that the CPU Architecture of the image or disk is compatible with that of the VM size.",
            "BadRequest",
        )
    if image.generation not in size.generations.split(","):
        number = image.generation.removeprefix("V")
        raise invalid(
            f"The selected VM size '{size.name}' cannot boot Hypervisor Generation '{number}'. If this was a Create "
            "operation please check that the Hypervisor Generation of the Image matches the Hypervisor Generation of "
            "the "
            f"selected VM Size. If this was an Update operation please select a Hypervisor Generation '{number}' VM "
            "Size. "
            "For more information, see https://aka.ms/azuregen2vm",
            "BadRequest",
        )


def _check_disk(disk: Mapping[str, Any], size: TwinSize) -> None:
    kind = str((disk.get("managedDisk") or {}).get("storageAccountType", ""))
    if kind and kind not in _DISKS:
        raise invalid(f"The value '{kind}' of parameter storageAccountType is not valid: {', '.join(_DISKS)} are.")
    if kind.startswith("Premium") and not size.premium:
        raise invalid(
            f"Requested operation cannot be performed because the VM size {size.name} does not support the storage "
            "account "
            f"type {kind} of disk '{disk.get('name', 'osDisk')}'. Consider updating the VM to a size that supports "
            "Premium "
            "storage."
        )


def _attaches_system(given: Mapping[str, Any]) -> bool:
    return str((given["storageProfile"].get("osDisk") or {}).get("createOption", "")).lower() == "attach"


def _check_security(given: Mapping[str, Any], size: TwinSize, version: str) -> None:
    kind = (given.get("securityProfile") or {}).get("securityType")
    if kind == "Standard" and version < _STANDARD_SINCE:  # the subscription has not registered the feature for it
        raise invalid("The value of parameter securityProfile.securityType is invalid.")
    if bool(size.confidential) != (kind == "ConfidentialVM"):
        raise invalid(
            f"The VM size '{size.name}' is not supported for creation of VMs and Virtual Machine Scale Set with "
            f"'{kind or '<NULL>'}' security type.",
            "BadRequest",
        )


def _check_interfaces(cloud: CloudState, given: Mapping[str, Any], size: TwinSize, region: str) -> None:
    profile = given["networkProfile"]
    for one in profile.get("networkInterfaceConfigurations") or ():
        check_described(one)
    named = [cloud.find(str(one.get("id", ""))) for one in profile.get("networkInterfaces") or ()]
    wanted = [one.properties for one in named if one is not None and one.kind == NICS]
    wanted += [one.get("properties") or {} for one in profile.get("networkInterfaceConfigurations") or ()]
    if not size.accelerated and any(one.get("enableAcceleratedNetworking") for one in wanted):
        raise invalid(
            f"The virtual machine size {size.name} is not permitted to enable accelerated networking.",
            "VMSizeIsNotPermittedToEnableAcceleratedNetworking",
        )
    for one in named:
        if one is not None and one.region != region:
            raise invalid(
                f"Resource {one.id} referenced by the virtual machine was not found. Please make sure that the "
                "referenced "
                "resource exists, and that both resources are in the same region.",
                "InvalidResourceReference",
            )


def check_described(card: Mapping[str, Any]) -> None:
    """An interface that is created with its VM."""
    needed(card, "name")
    for one in needed(card, "properties", "ipConfigurations"):
        needed(one, "name")
        if public := (one.get("properties") or {}).get("publicIPAddressConfiguration"):
            needed(public, "name")


def check_place(given: Mapping[str, Any], more: Mapping[str, str] | None = None) -> None:
    """What the twin has no place for is refused rather than passed over."""
    for word, none in {**_PLACES, **(more or {})}.items():
        if id := (given.get(word) or {}).get("id"):
            raise invalid(
                f"Resource {id} referenced by '{word}' was not found: the twin has no {none}; the nearest it has is a "
                "scale set.",
                "InvalidResourceReference",
            )


def _check_login(given: Mapping[str, Any]) -> None:
    profile = needed(given, "osProfile")
    user = str(needed(profile, "adminUsername"))
    if user.lower() in _FORBIDDEN_USERS or not _USER.match(user) or user.endswith("."):
        raise invalid("The Admin Username specified is not allowed.")
    host = str(profile.get("computerName") or needed(profile, "computerName"))
    if not _HOST.match(host):
        raise invalid(
            "Linux host name cannot exceed 64 characters in length or contain the following characters: "
            "` ~ ! @ # $ % ^ & * ( ) = + _ [ ] { } \\ | ; : ' \" , < > / ?."
        )
    linux = profile.get("linuxConfiguration") or {}
    keys = (linux.get("ssh") or {}).get("publicKeys") or ()
    for key in keys:
        _check_key(key, user)
    password = profile.get("adminPassword")
    if linux.get("disablePasswordAuthentication") and not keys:
        raise invalid(
            "Authentication using either SSH or by user name and password must be enabled in Linux profile. For more "
            "information, see https://aka.ms/linuxprofile"
        )
    if not linux.get("disablePasswordAuthentication"):
        _check_password(str(password or needed(profile, "adminPassword")))
    check_custom_data(profile.get("customData"), "Custom data in OSProfile")
    check_custom_data(given.get("userData"), "User data")


def _check_key(key: Mapping[str, Any], user: str) -> None:
    where = f"/home/{user}/.ssh/authorized_keys"
    if key.get("path", where) != where:
        raise invalid(
            f"Destination path for SSH public keys is currently limited to its default value {where} due to a known "
            "issue "
            "in Linux provisioning agent."
        )
    kind, _, rest = str(key.get("keyData", "")).strip().partition(" ")
    try:
        blob = base64.b64decode(rest.split(" ")[0], validate=True)
    except ValueError:
        blob = b""
    if kind not in ("ssh-rsa", "ssh-ed25519") or blob[4 : 4 + len(kind)] != kind.encode():
        raise invalid("The value of parameter linuxConfiguration.ssh.publicKeys.keyData is invalid.")


def _check_password(password: str) -> None:
    kinds = (r"[a-z]", r"[A-Z]", r"[0-9]", r"[^A-Za-z0-9]")
    if not 6 <= len(password) <= 72 or sum(bool(re.search(kind, password)) for kind in kinds) < 3:
        raise invalid(
            "The supplied password must be between 6-72 characters long and must satisfy at least 3 of password "
            "complexity "
            "requirements from the following: Contains an uppercase character, Contains a lowercase character, "
            "Contains a "
            "numeric digit, Contains a special character, Control characters are not allowed."
        )


def check_custom_data(text: Any, what: str) -> None:
    if text is None:
        return
    try:
        size = len(base64.b64decode(str(text), validate=True))
    except ValueError:  # not base64, or not even ASCII
        size = _MOST_CUSTOM_DATA + 1
    if size > _MOST_CUSTOM_DATA:
        raise invalid(f"{what} must be in Base64 encoding and with a maximum length of 87380 characters.")
