"""Template deployments: many resources with one request, in the order of their dependencies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from stoker.twin import ids, rights
from stoker.twin.arm import bodies
from stoker.twin.arm.ask import ROUTES, ArmAnswer, Ask, accepted, begin, needed, page, route
from stoker.twin.arm.resources import deletable, refuse_deleting, require_group
from stoker.twin.arm.subscription import places, policies
from stoker.twin.arm.template import Scope, evaluate
from stoker.twin.refusal import Refused, conflict, deployment_failed
from stoker.twin.state import CloudState, Resource
from stoker.twin.time import weather

DEPLOYMENTS = "Microsoft.Resources/deployments"


@route("PUT", DEPLOYMENTS)
def put(cloud: CloudState, ask: Ask) -> tuple[CloudState, ArmAnswer]:
    """Requests each part as its own PUT would, and ends when they have. The first refusal fails the deployment."""
    require_group(cloud, ask)
    refuse_deleting(cloud, ask)
    _refuse_active(cloud, ask)
    planned = _ordered(_resources(cloud, ask))
    given = ask.body["properties"]
    shown = {
        "mode": given.get("mode", "Incremental"),
        "parameters": _visible(given),
        "provisioningState": "Running",
        "timestamp": ask.stamp(),
        "correlationId": ask.uuid("correlation"),
        "outputResources": [{"id": _id(ask, one)} for one in planned],
    }
    tags = {"tags": dict(ask.body["tags"])} if ask.body.get("tags") else {}
    deployment = Resource(ask.id, {**tags, "properties": shown}, ask.now)
    cloud = cloud.put(deployment)
    before = set(cloud.operations)
    cloud, refusal = _apply(cloud, ask, planned)
    parts = tuple(id for id in cloud.operations if id not in before)
    as_text = cloud.weather.errors_as_text
    error = deployment_failed([refusal.body()], as_text=as_text) if refusal else None
    cloud, operation = begin(cloud, ask, "put", 0.0, error=error)
    cloud = cloud.put_operation(replace(operation, after=parts))
    cloud = cloud.put(_with_outputs(cloud, ask, deployment))
    return cloud, accepted(ask, operation, deployment.answer(), status=201)


def _refuse_active(cloud: CloudState, ask: Ask) -> None:
    """A running deployment cannot be requested again, not even with the same template."""
    there = cloud.find(ask.id)
    if there and there.properties["provisioningState"] == "Running":
        raise conflict(
            f"Unable to edit or replace deployment '{there.name}': previous deployment from "
            f"'{there.properties['timestamp']}' is still active. Please see "
            "https://aka.ms/arm-deploy for usage details.",
            "DeploymentActive",
        )


@route("POST", DEPLOYMENTS, "validate")
def validate(cloud: CloudState, ask: Ask) -> tuple[CloudState, ArmAnswer]:
    """Everything except execution: reports also what a part would be refused for."""
    require_group(cloud, ask)
    planned = _ordered(_resources(cloud, ask))
    _, refusal = _apply(cloud, ask, planned)
    if refusal:
        raise Refused(400, "InvalidTemplateDeployment", _SEE_INSIDE, details=[refusal.body()])
    properties = {"provisioningState": "Succeeded", "validatedResources": [{"id": _id(ask, one)} for one in planned]}
    return cloud, ArmAnswer(200, {"id": ask.id, "name": ask.target.name, "type": DEPLOYMENTS, "properties": properties})


@route("POST", DEPLOYMENTS, "whatIf")
def what_if(cloud: CloudState, ask: Ask) -> tuple[CloudState, ArmAnswer]:
    """What a deployment would create or change; refused as `validate` is."""
    _, checked = validate(cloud, ask)
    ids_ = [str(one["id"]) for one in checked.body["properties"]["validatedResources"]]
    changes = [{"resourceId": id, "changeType": "Modify" if cloud.find(id) else "Create"} for id in ids_]
    cloud, operation = begin(cloud, ask, "run", 0.0)
    result = {"status": "Succeeded", "properties": {"correlationId": ask.uuid("what-if"), "changes": changes}}
    operation = replace(operation, result=result)
    return cloud.put_operation(operation), accepted(ask, operation)


_SEE_INSIDE = (
    "The template deployment is not valid according to the validation procedure. See inner errors for details."
)


@route("GET", DEPLOYMENTS)
def get(cloud: CloudState, ask: Ask) -> tuple[CloudState, ArmAnswer]:
    require_group(cloud, ask)
    deployment = cloud.find(ask.id)
    if deployment is None:
        raise Refused(404, "DeploymentNotFound", f"Deployment '{ask.target.name}' could not be found.")
    errors = [one.error for one in cloud.operations.values() if one.about == deployment.id and one.error]
    body = deployment.having(error=errors[-1]).answer() if errors else deployment.answer()
    return cloud, ArmAnswer(200, body)


@route("GET", "Microsoft.Resources", "deployments")
def list_all(cloud: CloudState, ask: Ask) -> tuple[CloudState, ArmAnswer]:
    require_group(cloud, ask)
    return cloud, page(ask, [one.answer() for one in cloud.all(DEPLOYMENTS, ask.target.group)])


@route("POST", DEPLOYMENTS, "cancel")
def cancel(cloud: CloudState, ask: Ask) -> tuple[CloudState, ArmAnswer]:
    """Parts that were already requested are still created, but nothing waits for them."""
    require_group(cloud, ask)
    there = cloud.find(ask.id)
    if there is None:
        raise Refused(404, "DeploymentNotFound", f"Deployment '{ask.target.name}' could not be found.")
    if there.properties["provisioningState"] != "Running":
        raise conflict(
            f"Unable to cancel deployment '{there.name}': it is in the terminal state "
            f"'{there.properties['provisioningState']}'.",
            "DeploymentCannotBeCancelled",
        )
    ended = [one for one in cloud.operations.values() if one.open and (one.verb, one.about) == ("put", there.id)]
    for one in ended:
        cloud = cloud.put_operation(replace(one, status="Canceled", ended_at=ask.now))
    return cloud.put(there.having(provisioningState="Canceled")), ArmAnswer(204)


def _not_running(_cloud: CloudState, deployment: Resource) -> None:
    if deployment.properties["provisioningState"] == "Running":
        raise conflict(
            f"Unable to delete deployment '{deployment.name}': it is in the active state.", "DeploymentActive"
        )


deletable(DEPLOYMENTS, _not_running)


def _resources(cloud: CloudState, ask: Ask) -> list[dict[str, Any]]:
    """The template's resources with their names evaluated. Their bodies wait until what they refer to exists."""
    _check_template(needed(ask.body, "properties"))
    scope = _scope(cloud, ask)
    given = ask.body["properties"]["template"].get("resources", ())
    found = [dict(one) for one in given if evaluate(one.get("condition", True), scope)]
    for one in found:
        one["name"], one["type"] = evaluate(one["name"], scope), evaluate(one["type"], scope)
        one["dependsOn"] = evaluate(one.get("dependsOn") or [], scope)
    return found


def _check_template(given: Mapping[str, Any]) -> None:
    """Checks the form that the template schema requires, before anything is evaluated."""
    template = needed(given, "template")
    if not isinstance(template, Mapping):
        raise _malformed("the template is not an object")
    for owner, word in (
        (given, "parameters"),
        (template, "parameters"),
        (template, "variables"),
        (template, "outputs"),
    ):
        parts = owner.get(word) or {}
        if not isinstance(parts, Mapping):
            raise _malformed(f"'{word}' is not an object")
        for name, one in parts.items():
            if word != "variables" and not isinstance(one, Mapping):
                raise _malformed(f"'{word}.{name}' is not an object")
            if word == "outputs" and not {"type", "value"} <= set(one):
                raise _malformed(f"'outputs.{name}' lacks its type or its value")
    resources = template.get("resources", [])
    if not isinstance(resources, list):
        raise _malformed("'resources' is not a list")
    for number, one in enumerate(resources):
        if not isinstance(one, Mapping) or not all(isinstance(one.get(word), str) for word in _NEEDED):
            raise _malformed(f"'resources[{number}]' lacks one of the texts {', '.join(_NEEDED)}")
        wanted = one.get("dependsOn") or []
        if not isinstance(wanted, list) or not all(isinstance(word, str) for word in wanted):
            raise _malformed(f"'resources[{number}].dependsOn' is not a list of texts")


_NEEDED = ("type", "apiVersion", "name")


def _malformed(why: str) -> Refused:
    return Refused(400, "InvalidTemplate", f"Deployment template parse failed: {why}.")


def _scope(cloud: CloudState, ask: Ask) -> Scope:
    given = ask.body["properties"]
    declared = given["template"].get("parameters") or {}
    values = {name: one.get("value") for name, one in (given.get("parameters") or {}).items()}
    for name, declaration in declared.items():
        if name not in values:
            if "defaultValue" not in declaration:
                raise Refused(400, "InvalidTemplate", f"The value for the template parameter '{name}' is not provided.")
            values[name] = declaration["defaultValue"]
    target = ask.target

    def reference(name: str) -> Mapping[str, Any]:
        wanted = (
            name if name.startswith("/") else next((key for key in cloud.resources if key.endswith(name.lower())), "")
        )
        found = cloud.find(wanted)
        if found is None:
            raise Refused(400, "InvalidTemplate", f"The resource '{name}' is not defined in the template.")
        return found.answer()

    variables = given["template"].get("variables") or {}
    region = require_group(cloud, ask).region
    plain = Scope({}, variables, target.subscription, cloud.tenant, target.group, region, reference)
    return replace(plain, parameters={name: evaluate(value, plain) for name, value in values.items()})


def _ordered(resources: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each after its dependencies."""
    done: list[dict[str, Any]] = []
    waiting = list(resources)
    while waiting:
        ready = [
            one for one in waiting if not any(_meant(word, other) for word in one["dependsOn"] for other in waiting)
        ]
        if not ready:
            raise Refused(400, "InvalidTemplate", "Circular dependency detected on resources of the template.")
        done += ready
        waiting = [one for one in waiting if one not in ready]
    return done


def _meant(word: str, resource: Mapping[str, Any]) -> bool:
    name, kind = str(resource["name"]).lower(), str(resource["type"]).lower()
    word = word.lower()
    return word == name or word.endswith(f"{kind}/{name}")


def _apply(cloud: CloudState, ask: Ask, planned: list[dict[str, Any]]) -> tuple[CloudState, Refused | None]:
    for one in planned:
        id = _id(ask, one)
        kept = {key: one[key] for key in _BODY if key in one}
        part = ask.at(id, evaluate(kept, _scope(cloud, ask)))
        part = replace(part, query={"api-version": str(evaluate(one["apiVersion"], _scope(cloud, ask)))})
        handler = ROUTES.get(("PUT", part.target.kind.lower(), ""))
        if handler is None:
            return cloud, Refused(400, "InvalidTemplate", f"The twin has no resource type '{one['type']}'.")
        fault, left = weather.take(cloud.faults, ("refuse",), "PUT", part.path)
        if fault:  # ordered by a test: as a policy of the subscription refuses a part
            return replace(cloud, faults=left), Refused(fault.status, fault.code, fault.message)
        try:
            bodies.check_outline(part)
            bodies.check(part)
            part = bodies.checked(part)
            _check_rights(cloud, part)
            places.check(cloud, part)
            policies.check_policies(cloud, part)
            cloud, _ = handler(cloud, part)
        except Refused as refusal:
            return cloud, refusal
    return cloud, None


def _check_rights(cloud: CloudState, part: Ask) -> None:
    """A deployment has the rights of its creator: each part is requested in their name, and so is what it refers to."""
    rights.check(cloud, part.claims, f"{part.target.kind}/write", part.id, part.body)
    rights.check_links(cloud, part.claims, part.target.kind, part.id, part.body)


_BODY = ("location", "tags", "sku", "zones", "kind", "identity", "plan", "properties")


def _id(ask: Ask, resource: Mapping[str, Any]) -> str:
    names = str(resource["name"]).split("/")
    scope = str(resource.get("scope") or "")
    if scope:
        return ids.ResourceTarget(str(resource["type"]), tuple(names), scope=scope).id
    return ids.resource_id(ask.target.subscription, ask.target.group, str(resource["type"]), *names)


def _visible(given: Mapping[str, Any]) -> dict[str, Any]:
    """Secure parameters are never returned."""
    declared = given["template"].get("parameters") or {}
    open_ = {name for name, one in declared.items() if not str(one.get("type", "")).lower().startswith("secure")}
    return {name: one for name, one in (given.get("parameters") or {}).items() if name in open_}


def _with_outputs(cloud: CloudState, ask: Ask, deployment: Resource) -> Resource:
    declared = ask.body["properties"]["template"].get("outputs") or {}
    try:
        scope = _scope(cloud, ask)
        outputs = {
            name: {"type": one["type"], "value": evaluate(one["value"], scope)} for name, one in declared.items()
        }
    except Refused:
        outputs = {}
    return deployment.having(outputs=outputs)
