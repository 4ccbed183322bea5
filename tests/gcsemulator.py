"""Runs gcp-storage-emulator with what it lacks: the condition that an object is not there yet, which makes commits.

`python gcsemulator.py PORT`. It asks for no token, and answers one request at a time.
"""

from __future__ import annotations

import sys
from http import HTTPStatus
from typing import Any

from gcp_storage_emulator import server
from gcp_storage_emulator.exceptions import NotFound
from gcp_storage_emulator.handlers import objects


def on_condition(handle: Any) -> Any:
    def answer(request: Any, response: Any, storage: Any, *more: Any) -> None:
        request.data  # noqa: B018  # read before it is answered, or the connection breaks
        if request.query.get("ifGenerationMatch") == ["0"]:
            try:
                storage.get_file_obj(request.params["bucket_name"], request.query["name"][0])
            except NotFound:
                pass
            else:
                response.status = HTTPStatus.PRECONDITION_FAILED
                response.json({"error": {"code": 412, "message": "At least one of the pre-conditions did not hold."}})
                return
        handle(request, response, storage, *more)

    return answer


def main() -> None:
    for _, handlers in server.HANDLERS:
        for method, handle in list(handlers.items()):
            if handle in (objects.insert, objects.upload_partial):
                handlers[method] = on_condition(handle)
    running = server.create_server("127.0.0.1", int(sys.argv[1]), in_memory=True)
    print(f"Running on http://127.0.0.1:{sys.argv[1]}", flush=True)  # noqa: T201  # whoever starts it waits for this
    running.run()


if __name__ == "__main__":
    main()
