"""What a hand-over file may say of an Azure account, and which hosts are Azure's own."""

from __future__ import annotations

from stoker.model.workspace.accountform import AccountForm, Address, Flag, Number, Text

_ID = Text(r"[A-Za-z0-9-]{0,64}", "an id")
_RESOURCE = Text(r"(?!.*\.\.)(?:/[A-Za-z0-9 ._()-]+)*", "a resource's id")
_WORD = r"[A-Za-z0-9_.-]{1,60}"

# Exact hosts, not endings: everybody's machines are found below `cloudapp.azure.com`.
_ARM = ("management.azure.com", "management.usgovcloudapi.net", "management.chinacloudapi.cn")
_LOGIN = (
    "login.microsoftonline.com",
    "login.microsoftonline.us",
    "login.partner.microsoftonline.cn",
    "login.chinacloudapi.cn",
)
_CLOUDS = r"blob\.core\.(?:windows\.net|usgovcloudapi\.net|chinacloudapi\.cn)"
_BLOB = rf"[a-z0-9]{{3,24}}\.(?:{_CLOUDS}|z[0-9]{{1,2}}\.blob\.storage\.azure\.net)"

# Not here: what names a file (`secret_file`, `ca_file`, `switch`, `replay`), what lets somebody in (`ssh_key`,
# `open_ssh`, `ssh_from`) and whose login is used (`client`). Those are for a user to say.
FORM = AccountForm(
    fields={
        "subscription": Text(r"[A-Za-z0-9-]{1,64}", "a subscription's id"),
        "tenant": _ID,
        "workspace": Text(r"[a-z0-9][a-z0-9-]{0,29}", "a workspace's name"),
        "regions": Text(r"[a-z0-9]{1,40}", "a list of regions", many=80),
        "sizes": Text(_WORD, "a list of VM sizes", many=500),
        "image": Text(rf"(?:{_WORD}:{_WORD}:{_WORD}:{_WORD})?|{_RESOURCE.pattern}", "publisher:offer:sku:version"),
        "disk_gb": Number(30, 4095, whole=True),
        "role": _ID,
        "practitioner": _ID,
        "subnet": _RESOURCE,
        "public_address": Flag(),
        "eviction": Text(r"Delete|Deallocate", "`Delete` or `Deallocate`"),
        "lease_s": Number(5, 432_000),
        "idle_s": Number(5, 86_400),
        "ready_s": Number(0, 3_600),
        "driver_s": Number(0, 3_600),
        "release_s": Number(0, 3_600),
        "arm": Address(own=_ARM),
        "login": Address(own=_LOGIN),
        "prices": Address(own=("prices.azure.com",)),
    },
    required=("subscription",),
    stores=_BLOB,
    login=r"az login(?: --tenant [A-Za-z0-9.-]{1,64})?"
    r"|export AZURE_TENANT_ID=[A-Za-z0-9.-]{0,64} AZURE_CLIENT_ID=… AZURE_CLIENT_SECRET=…",
    admission=r"stoker admin setup azure --workspace [a-z0-9-]{1,30} --practitioner YOUR-OBJECT-ID",
)
