"""What a node may do in an S3 bucket, judged by a service that enforces policies: moto.

It ignores conditions, which limit listing: `test_a_policy_allows_no_more_than_was_asked_for` reads those.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from importlib import import_module
from typing import Any
from urllib.request import Request, urlopen

import pytest

from services import S3Server, run_s3
from stoker.errors import StoreDenied
from stoker.model.workspace import layout
from stoker.stores import Store
from stoker.stores.access import Access, Route
from stoker.stores.kinds import locate
from stoker.stores.opening import open_access
from stoker.stores.s3.client import Keys, keys_text, policy

CODE, OTHER_CODE = layout.code("1" * 64), layout.code("1" * 63)
ANTS, BEES = layout.manifest("ants", "2" * 64), layout.manifest("bees", "3" * 64)
READS, WRITES = [layout.dataset("ants"), CODE], ["runs/aa11/"]
OTHERS = ["runs/bb22/secret", "elsewhere", "runs/aa1", BEES, OTHER_CODE, f"{CODE}0", layout.record("aa11")]
OTHERS += [layout.record("bb22"), layout.dataset_record("ants")]


@pytest.fixture(scope="module")
def service() -> Iterator[S3Server]:
    """Its own: from `enforce` on it refuses unknown users."""
    with run_s3() as service:
        yield service


@pytest.fixture(scope="module")
def node(service: S3Server) -> Store:
    """A store with the keys of a user whose only rights are the policy that a node's keys carry.

    The route is the whole bucket, so that the service refuses, not the node's own checks.
    """
    url = service.new_bucket()
    location = locate(url)
    owner = open_access(Access((Route("", url, keys_text(Keys("stoker", "any", "")), True),), time.time() + 900))
    for key in (ANTS, CODE, "runs/aa11/old", *OTHERS):
        owner.put(key, b"there")
    iam: Any = import_module("boto3").client(
        "iam", endpoint_url=service.endpoint, region_name="us-east-1", aws_access_key_id="a", aws_secret_access_key="b"
    )
    iam.create_user(UserName="node")
    limits = json.dumps(policy(location, READS, WRITES))
    iam.put_user_policy(UserName="node", PolicyName="part", PolicyDocument=limits)
    made = iam.create_access_key(UserName="node")["AccessKey"]
    enforce(service)
    token = keys_text(Keys(made["AccessKeyId"], made["SecretAccessKey"], ""))
    return open_access(Access((Route("", url, token, True),), time.time() + 900))


def enforce(service: S3Server) -> None:
    with urlopen(Request(f"{service.endpoint}/moto-api/reset-auth", b"0", {"Content-Type": "text/plain"}), timeout=10):
        pass


def test_it_reads_the_data_and_its_run_and_writes_its_run(node: Store) -> None:
    assert node.get(ANTS) == node.get(CODE) == b"there"
    assert [one.key for one in node.list(layout.dataset("ants"))] == [ANTS]
    assert node.get("runs/aa11/old") == b"there"
    node.put("runs/aa11/new", b"written")
    assert node.get("runs/aa11/new") == b"written"
    node.delete("runs/aa11/new")


@pytest.mark.parametrize("key", OTHERS)
def test_it_reads_nothing_else(node: Store, key: str) -> None:
    with pytest.raises(StoreDenied):
        node.get(key)


@pytest.mark.parametrize("key", [ANTS, CODE, *OTHERS])
def test_it_writes_and_deletes_nothing_else(node: Store, key: str) -> None:
    with pytest.raises(StoreDenied):
        node.put(key, b"mine now")
    with pytest.raises(StoreDenied):
        node.delete(key)
