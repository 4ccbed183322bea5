"""URLs of stores say where they are, and never contain a secret."""

import pytest

from stoker.errors import BadInput
from stoker.stores.kinds import Location, locate, without_secrets


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("file:///data/a%20b", Location("folder", prefix="/data/a b")),
        ("/data", Location("folder", prefix="/data")),
        (
            "az://account/box/some/where",
            Location("azure", "https://account.blob.core.windows.net", "account", "box", "some/where/"),
        ),
        (
            "https://account.blob.core.windows.net/box",
            Location("azure", "https://account.blob.core.windows.net", "account", "box"),
        ),
        (
            "https://account.blob.core.chinacloudapi.cn/box/",
            Location("azure", "https://account.blob.core.chinacloudapi.cn", "account", "box"),
        ),
        (
            "http://127.0.0.1:10000/devstoreaccount1/box/%C3%BC%20x",
            Location("azure", "http://127.0.0.1:10000/devstoreaccount1", "devstoreaccount1", "box", "ü x/"),
        ),
        ("s3://bucket/deep/er", Location("s3", container="bucket", prefix="deep/er/")),
        (
            "s3://bucket?endpoint=http://127.0.0.1:9000&region=eu-west-1",
            Location("s3", "http://127.0.0.1:9000", container="bucket", region="eu-west-1"),
        ),
    ],
)
def test_a_url_is_read_and_written_the_same(url: str, expected: Location) -> None:
    assert locate(url) == expected
    assert locate(expected.url) == expected


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("ftp://bucket", "URLs with `ftp://`"),
        ("az://ACCOUNT!/box", "not a valid storage account name"),
        ("az://account/B", "not a valid container name"),
        ("az://account", "not a valid container name"),
        ("az://account/a--b", "not a valid container name"),
        ("https://account.blob.core.windows.net/box?sv=1&sig=abc", "contains a token"),
        ("s3://bucket?key=1", "unknown setting `key`"),
        ("s3://b", "not a valid bucket name"),
        ("s3://bucket?endpoint=ftp://x", "not an http address"),
        ("az://account/box/../up", "not a path inside"),
        ("relative/path", "starts with `/`"),
    ],
)
def test_a_url_that_is_no_stores_is_refused_with_a_message(url: str, words: str) -> None:
    with pytest.raises(BadInput) as refused:
        locate(url)
    assert words in str(refused.value)
    assert "sig=abc" not in str(refused.value)


def test_a_message_shows_no_secret() -> None:
    assert without_secrets("https://me:secret@host/box?sv=1&sig=abc") == "https://host/box"
    assert without_secrets("s3://b?endpoint=http://h&region=r&x=secret") == "s3://b?endpoint=http://h&region=r"
