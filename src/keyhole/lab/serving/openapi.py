"""What a served model offers, as an OpenAPI document and as a page."""

from __future__ import annotations

from html import escape

import msgspec

from keyhole import __version__
from keyhole.lab.serving.metadata import VERSION


class Schema(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What JSON must look like."""

    type: str
    required: list[str] = []
    properties: dict[str, Schema] = {}
    items: Schema | None = None
    enum: list[str] = []


class Content(msgspec.Struct, frozen=True):
    """A body of one media type."""

    schema: Schema


class Answer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What an answer of one code means, and holds."""

    description: str
    content: dict[str, Content] = {}


class RequestBody(msgspec.Struct, frozen=True, kw_only=True):
    """What a request holds, by media type."""

    required: bool
    content: dict[str, Content]


class Operation(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """One method of one path."""

    summary: str
    description: str = ""
    request_body: RequestBody | None = None
    responses: dict[str, Answer]


class Info(msgspec.Struct, frozen=True, kw_only=True):
    """What is described."""

    title: str
    version: str


class SecurityScheme(msgspec.Struct, frozen=True, kw_only=True):
    """How a client says who it is."""

    type: str
    scheme: str


class Components(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What the document names elsewhere."""

    security_schemes: dict[str, SecurityScheme]


class ApiDocument(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An OpenAPI document."""

    openapi: str
    info: Info
    paths: dict[str, dict[str, Operation]]
    components: Components | None = None
    security: list[dict[str, list[str]]] = []


_PLAIN = Schema(type="object")
_NUMBER = Schema(type="integer")
_TENSOR = Schema(
    type="object",
    required=["name", "shape", "datatype"],
    properties={
        "name": Schema(type="string"),
        "shape": Schema(type="array", items=_NUMBER),
        "datatype": Schema(type="string", enum=["FP64", "FP32", "FP16"]),
        "data": Schema(type="array", items=Schema(type="number")),
        "parameters": Schema(type="object", properties={"binary_data_size": _NUMBER}),
    },
)
_REFUSALS = {
    "400": "The message is no batch of finite sequences of the right width.",
    "401": "A bearer token is required, and none or another was sent.",
    "403": (
        "The budget of this client is spent, or the request names another host or comes from"
        " another page."
    ),
    "404": "There is no such model.",
    "408": "The body did not arrive in time.",
    "413": "The message is too large, as it is sent or once it is unpacked.",
    "415": "The body is packed in another way than gzip or deflate.",
    "422": "The model has no finite answer to this question.",
    "429": "Too fast; Retry-After says when to try again.",
    "500": "The model failed; the message says how.",
}


def _describe_success(text: str, schema: Schema = _PLAIN) -> dict[str, Answer]:
    return {"200": Answer(description=text, content={"application/json": Content(schema)})}


def _describe_tensors(side: str) -> Schema:
    tensors = Schema(type="array", items=_TENSOR)
    return Schema(type="object", required=[side], properties={side: tensors})


def _describe_question(summary: str, answer: str) -> dict[str, Operation]:
    return {"get": Operation(summary=summary, responses=_describe_success(answer))}


def _describe_asking(width: int, outputs: int | None) -> Operation:
    batch = (
        f"A batch of sequences of width {width}, at most as large as the server allows; answers"
        f" have {outputs or 'a fixed number of'} numbers each. Bytes may follow the JSON head"
        " instead of `data`, with its length in the header Inference-Header-Content-Length."
    )
    kinds = ("application/json", "application/octet-stream")
    content = {kind: Content(_describe_tensors("inputs")) for kind in kinds}
    answered = _describe_success("One row of answers per sequence.", _describe_tensors("outputs"))
    refusals = {code: Answer(description=text) for code, text in _REFUSALS.items()}
    return Operation(
        summary="Ask a batch",
        description=batch,
        request_body=RequestBody(required=True, content=content),
        responses=answered | refusals,
    )


def describe_api(name: str, width: int, outputs: int | None, *, token: bool) -> ApiDocument:
    """The OpenAPI document of a served model."""
    model = f"/v2/models/{name}"
    described: dict[str, dict[str, Operation]] = {}
    # The only version there is may be named or not.
    for place in (model, f"{model}/versions/{VERSION}"):
        described |= {
            place: _describe_question("The model", "Its inputs and outputs."),
            f"{place}/ready": _describe_question("Does the model answer?", "It does."),
            f"{place}/infer": {"post": _describe_asking(width, outputs)},
        }
    bearer = SecurityScheme(type="http", scheme="bearer")
    return ApiDocument(
        openapi="3.1.0",
        info=Info(title=f"keyhole: {name}", version=__version__),
        paths={
            "/v2": _describe_question("The server", "Its name, version, extensions."),
            "/v2/health/live": _describe_question("Is it running?", "It is."),
            "/v2/health/ready": _describe_question("Does it answer?", "It does."),
            **described,
        },
        components=Components(security_schemes={"bearer": bearer}) if token else None,
        security=[{"bearer": []}] if token else [],
    )


def draw_api_page(described: ApiDocument) -> str:
    """The document as a page."""
    rows = "".join(
        _format_operation(f"{method.upper()} {path}", work)
        for path, methods in described.paths.items()
        for method, work in methods.items()
    )
    title = escape(described.info.title)
    style = (
        "body{font:16px/1.5 system-ui;max-width:48rem;margin:2rem auto;padding:0 1rem}"
        "h2{font:600 1rem monospace}"
    )
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>'
        f"<style>{style}</style><h1>{title}</h1><p>The Open Inference Protocol V2."
        f' <a href="openapi.json">openapi.json</a></p>{rows}</html>'
    )


def _format_operation(title: str, work: Operation) -> str:
    responses = "".join(
        f"<li><b>{code}</b> {escape(said.description)}</li>"
        for code, said in work.responses.items()
    )
    said = f"{escape(work.summary)}. {escape(work.description)}"
    return f"<h2>{escape(title)}</h2><p>{said}</p><ul>{responses}</ul>"
