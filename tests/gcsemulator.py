"""Runs gcp-storage-emulator with what it lacks: the condition that an object is not there yet, which makes commits, and
the part of the XML API that obstore uses: HEAD, conditions, metadata and uploads in parts.

`python gcsemulator.py PORT`. It asks for no token, and answers one request at a time.
"""

from __future__ import annotations

import secrets
import sys
from datetime import datetime
from email.utils import format_datetime
from http import HTTPStatus
from typing import Any

from gcp_storage_emulator import server
from gcp_storage_emulator.exceptions import NotFound
from gcp_storage_emulator.handlers import objects

_META = "x-goog-meta-"
_XML_PATH = r"^/(?P<bucket_name>[-.%\w]+)/(?P<object_id>.*[^/]+)$"  # obstore encodes more than others
_UPLOADS: dict[str, dict[int, bytes]] = {}  # by id: the parts that were sent


def on_condition(handle: Any) -> Any:
    def answer(request: Any, response: Any, storage: Any, *more: Any) -> None:
        request.data  # noqa: B018  # read before it is answered, or the connection breaks
        if request.query.get("ifGenerationMatch") == ["0"] and _find(request, storage, request.query["name"][0]):
            response.status = HTTPStatus.PRECONDITION_FAILED
            response.json({"error": {"code": 412, "message": "At least one of the pre-conditions did not hold."}})
            return
        handle(request, response, storage, *more)

    return answer


def xml_get(request: Any, response: Any, storage: Any) -> None:
    objects.download(request, response, storage)
    found = _find(request, storage)
    if found is None:
        code = "NoSuchKey" if storage.get_bucket(request.params["bucket_name"]) else "NoSuchBucket"
        response.status = HTTPStatus.NOT_FOUND
        response.write_file(f"<Error><Code>{code}</Code></Error>".encode(), "application/xml")
        return
    _describe(response, found)
    ranged = (request.get_header("range") or "").removeprefix("bytes=").partition("-")[0]
    if ranged and int(ranged) >= int(found["size"]):
        response.status = HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE
        response.write_file(b"<Error><Code>InvalidRange</Code></Error>", "application/xml")


def xml_put(request: Any, response: Any, storage: Any) -> None:
    data = request.data or b""
    if "uploadId" in request.query:
        _UPLOADS[request.query["uploadId"][0]][int(request.query["partNumber"][0])] = data
        response["ETag"] = f'"{secrets.token_hex(8)}"'
        return
    if request.get_header("x-goog-if-generation-match") == "0" and _find(request, storage):
        response.status = HTTPStatus.PRECONDITION_FAILED
        return
    _store(request, response, storage, data)


def xml_post(request: Any, response: Any, storage: Any) -> None:
    request.data  # noqa: B018  # as above
    if "uploads" in request.path_query:
        id = secrets.token_hex(8)
        _UPLOADS[id] = {}
        text = f"<InitiateMultipartUploadResult><UploadId>{id}</UploadId></InitiateMultipartUploadResult>"
    else:
        parts = _UPLOADS.pop(request.query["uploadId"][0])
        _store(request, response, storage, b"".join(parts[number] for number in sorted(parts)))
        text = "<CompleteMultipartUploadResult><ETag>&quot;whole&quot;</ETag></CompleteMultipartUploadResult>"
    response.write_file(text.encode(), "application/xml")


def _store(request: Any, response: Any, storage: Any, data: bytes) -> None:
    bucket, name = request.params["bucket_name"], request.params["object_id"]
    given = request._request_handler.headers
    about = objects._make_object_resource(request.base_url, bucket, name, "application/octet-stream", str(len(data)))
    about["metadata"] = {
        key.lower()[len(_META) :]: value for key, value in given.items() if key.lower().startswith(_META)
    }
    try:
        storage.create_file(bucket, name, data, objects._checksums(data, about))
        _describe(response, _find(request, storage) or {})
    except NotFound:
        response.status = HTTPStatus.NOT_FOUND
        response.write_file(b"<Error><Code>NoSuchBucket</Code></Error>", "application/xml")


def _find(request: Any, storage: Any, name: str = "") -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = storage.get_file_obj(request.params["bucket_name"], name or request.params["object_id"])
        return found
    except NotFound:
        return None


def _describe(response: Any, found: dict[str, Any]) -> None:
    response["ETag"] = f'"{found.get("etag", "none")}"'
    response["x-goog-generation"] = str(found.get("generation", 1))
    response["Last-Modified"] = format_datetime(datetime.fromisoformat(found["updated"]), usegmt=True)


class Headless:
    """Writes nothing: the answer to a HEAD."""

    def __init__(self, file: Any) -> None:
        self._file, self._open = file, True

    def write(self, data: bytes) -> None:
        if self._open:
            self._file.write(data)
        self._open = self._open and b"\r\n\r\n" not in data


def do_head(handler: Any) -> None:
    whole, handler.wfile = handler.wfile, Headless(handler.wfile)
    try:
        server.Router(handler).handle(server.GET)
    finally:
        handler.wfile = whole


def main() -> None:
    for _, handlers in server.HANDLERS:
        for method, handle in list(handlers.items()):
            if handle in (objects.insert, objects.upload_partial):
                handlers[method] = on_condition(handle)
    xml = {server.GET: xml_get, server.PUT: xml_put, server.POST: xml_post}
    server.HANDLERS = (*server.HANDLERS[:-1], (_XML_PATH, xml))  # the last is that of the XML API
    server.Request.path_query = property(lambda request: request._parsed_url.query)
    server.RequestHandler.do_HEAD = do_head
    running = server.create_server("127.0.0.1", int(sys.argv[1]), in_memory=True)
    print(f"Running on http://127.0.0.1:{sys.argv[1]}", flush=True)  # noqa: T201  # whoever starts it waits for this
    running.run()


if __name__ == "__main__":
    main()
