"""Credentials and accesses hide their values, and can be read back from text."""

import json

import pytest

from stoker.errors import BadInput, StoreDenied
from stoker.stores.access import Access, Credential, Route
from stoker.stores.azure.client import sas_expires_at
from stoker.stores.azure.rights import account_sas, delegated_sas, reason, rights, sas_writes, service_sas
from stoker.stores.kinds import check_credential, grant, locate
from stoker.stores.s3.client import Keys, Signer, payload_hash, policy

KEY = "c2VjcmV0LXNlY3JldA=="
PLACE = locate("az://account/box")


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("none", {}),
        ("account-key", {"key": KEY}),
        ("sas", {"token": "sv=1&sig=hush"}),
        ("connection-string", {"text": f"AccountName=account;AccountKey={KEY}"}),
        ("login", {}),
        ("login", {"tenant": "t", "client": "c", "secret": "hush"}),
        ("s3-key", {"id": "AK", "secret": "hush", "role": "arn"}),
    ],
)
def test_a_credential_comes_back_and_shows_nothing(kind: str, values: dict[str, str]) -> None:
    credential = Credential(kind, values)
    assert Credential.from_text(credential.to_text()) == credential
    for secret in ("hush", KEY):
        assert secret not in repr(credential)


def test_a_credential_without_its_values_is_refused() -> None:
    with pytest.raises(BadInput, match="key"):
        check_credential(PLACE, Credential("account-key"))
    with pytest.raises(BadInput, match="`token`"):
        check_credential(PLACE, Credential("account-key", {"key": KEY, "token": "x"}))
    with pytest.raises(BadInput, match="`unheard-of`"):
        check_credential(PLACE, Credential("unheard-of"))
    for text in ("", "[]", '{"kind": 7}', '{"kind": "sas", "token": 1}'):
        with pytest.raises(BadInput):
            Credential.from_text(text)


def test_an_access_comes_back_and_shows_no_token() -> None:
    access = Access((Route("", "file:///a"), Route("runs/1/", "az://account/box", "sig=hush", True)), 12.5)
    assert Access.from_text(access.to_text()) == access
    assert "hush" not in repr(access)
    with pytest.raises(BadInput):
        Access.from_text("{}")


def test_the_longest_prefix_is_the_route() -> None:
    access = Access((Route("", "file:///a"), Route("runs/1/", "file:///b"), Route("runs/", "file:///c")))
    found = [access.route(key) for key in ("data/x", "runs/2/x", "runs/1/x")]
    assert [route.url if route else "" for route in found] == ["file:///a", "file:///c", "file:///b"]
    assert Access(()).route("x") is None


def test_a_connection_string_is_a_key_or_a_sas() -> None:
    def held(text: str) -> object:
        return rights(PLACE, Credential("connection-string", {"text": text}))

    _, by_key = rights(PLACE, Credential("connection-string", {"text": f"AccountName=account;AccountKey={KEY}"}))
    assert by_key.key == KEY
    assert by_key.splits
    place, by_sas = rights(
        PLACE,
        Credential(
            "connection-string",
            {"text": "BlobEndpoint=http://host:1/account/;SharedAccessSignature=sv=1&sig=a%3D"},
        ),
    )
    assert (place.endpoint, by_sas.sas, by_sas.splits) == ("http://host:1/account", "sv=1&sig=a%3D", False)
    for text in ("AccountName=account", f"AccountName=other;AccountKey={KEY}"):
        with pytest.raises(BadInput):
            held(text)


def test_a_sas_may_be_given_as_the_whole_url() -> None:
    url = "https://account.blob.core.windows.net/box?sv=1&se=2030-01-01T00%3A00%3A00Z&sp=rl&sig=x"
    _, held = rights(PLACE, Credential("sas", {"token": url}))
    assert sas_expires_at(held.sas) == 1893456000.0
    assert not sas_writes(held.sas)
    with pytest.raises(BadInput, match="no signature"):
        rights(PLACE, Credential("sas", {"token": "sv=1"}))


def test_an_account_key_that_is_not_base64_is_refused() -> None:
    with pytest.raises(BadInput, match="not base64"):
        rights(PLACE, Credential("account-key", {"key": "what?"}))


def test_no_token_shows_the_key() -> None:
    delegation = dict.fromkeys(("SignedOid", "SignedTid", "SignedStart", "SignedExpiry", "SignedService"), "x")
    delegation |= {"SignedVersion": "v", "Value": KEY}
    for token in (
        account_sas(PLACE, KEY, 60),
        service_sas(PLACE, KEY, "rl", 60),
        delegated_sas(PLACE, delegation, "rl", 60),
    ):
        assert KEY not in token
        assert "sig=" in token


def test_a_runs_token_is_for_its_own_container() -> None:
    credential = Credential("account-key", {"key": KEY})
    access = grant("az://account/box/ws", credential, reads=["data/"], writes=["runs/ab12/"], for_s=600)
    routes = {route.prefix: route for route in access.routes}
    assert routes["runs/ab12/"].url == "https://account.blob.core.windows.net/box-ab12/ws"
    assert routes["data/"].url == "https://account.blob.core.windows.net/box/ws/data"
    assert (routes["runs/ab12/"].writes, routes["data/"].writes) == (True, False)
    assert "sp=racwdl" in routes["runs/ab12/"].token
    assert "sp=rl" in routes["data/"].token


def test_a_sas_is_handed_on_as_it_is() -> None:
    token = "sv=1&se=2030-01-01T00:00:00Z&sp=rwl&sig=x"
    access = grant("az://account/box", Credential("sas", {"token": token}), reads=[], writes=["runs/1/"], for_s=9)
    assert access.routes == (Route("runs/1/", "https://account.blob.core.windows.net/box/runs/1", token, True),)
    assert access.expires_at == 1893456000.0
    reading = Credential("sas", {"token": "sp=rl&sig=x"})
    with pytest.raises(StoreDenied, match="only reads"):
        grant("az://account/box", reading, reads=[], writes=["runs/1/"], for_s=9)


def test_a_policy_allows_no_more_than_was_asked_for() -> None:
    found = policy(locate("s3://bucket/ws"), ["data/"], ["runs/1/"])
    allowed = {action: one["Resource"] for one in found["Statement"] for action in one["Action"]}
    assert allowed["s3:GetObject"] == ["arn:aws:s3:::bucket/ws/data/*", "arn:aws:s3:::bucket/ws/runs/1/*"]
    assert allowed["s3:PutObject"] == allowed["s3:DeleteObject"] == ["arn:aws:s3:::bucket/ws/runs/1/*"]
    one = policy(locate("s3://bucket/ws"), ["stoker/code/x"], [])["Statement"]
    assert [(each["Action"], each["Resource"]) for each in one] == [
        (["s3:GetObject"], ["arn:aws:s3:::bucket/ws/stoker/code/x"])
    ]
    listing = next(one for one in found["Statement"] if one["Action"] == ["s3:ListBucket"])
    assert listing["Condition"] == {"StringLike": {"s3:prefix": ["ws/data/*", "ws/runs/1/*"]}}
    assert "*" not in json.dumps(found).replace("/*", "")


@pytest.mark.parametrize(
    ("path", "query", "own", "signature"),
    [
        ("/test.txt", {}, {"range": "bytes=0-9"}, "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41"),
        ("/", {"max-keys": "2", "prefix": "J"}, {}, "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7"),
        ("/", {"lifecycle": ""}, {}, "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543"),
    ],
)
def test_a_signature_is_the_one_that_amazon_publishes(
    monkeypatch: pytest.MonkeyPatch, path: str, query: dict[str, str], own: dict[str, str], signature: str
) -> None:
    """The examples of the S3 reference: servers on this machine do not look at signatures."""
    monkeypatch.setattr("time.gmtime", lambda: (2013, 5, 24, 0, 0, 0, 4, 144, 0))
    signer = Signer(Keys("AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"), "us-east-1", "s3")
    payload = payload_hash(b"", secure=True)
    headers = signer.headers("GET", "examplebucket.s3.amazonaws.com", path, query, own, payload)
    assert headers["Authorization"].rpartition("Signature=")[2] == signature


@pytest.mark.parametrize(
    ("cli", "why"),
    [
        (
            "ERROR: AADSTS700082: The refresh token has expired due to inactivity. Trace ID: 1-2 Correlation ID: 3",
            "AADSTS700082: The refresh token has expired due to inactivity.",
        ),
        ("Please run 'az login' to set up an account", "Please run 'az login' to set up an account"),
    ],
)
def test_a_login_that_fails_says_why_in_the_words_of_azure(cli: str, why: str) -> None:
    said = f"""DefaultAzureCredential failed to retrieve a token from the included credentials.
Attempted credentials:
\tEnvironmentCredential: EnvironmentCredential authentication unavailable.
\tAzureCliCredential: {cli}
\tAzurePowerShellCredential: PowerShell is not installed"""
    assert reason(said) == why
    assert reason("another error\nand more") == "another error"
