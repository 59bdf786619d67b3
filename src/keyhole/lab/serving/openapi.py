"""What a served model offers, as an OpenAPI document and as a page."""

from __future__ import annotations

from html import escape
from typing import Any

from keyhole import __version__

_TENSOR = {
    "type": "object",
    "required": ["name", "shape", "datatype"],
    "properties": {
        "name": {"type": "string"},
        "shape": {"type": "array", "items": {"type": "integer"}},
        "datatype": {"type": "string", "enum": ["FP64", "FP32", "FP16"]},
        "data": {"type": "array", "items": {"type": "number"}},
        "parameters": {"type": "object", "properties": {"binary_data_size": {"type": "integer"}}},
    },
}
_REFUSALS = {
    "400": "The message is no batch of finite sequences of the right width.",
    "401": "A token is wanted, and this is not it.",
    "403": (
        "The budget of this client is spent, or the request names another host or comes from"
        " another page."
    ),
    "404": "There is no such model.",
    "408": "The body did not arrive in time.",
    "413": "The message is too large.",
    "422": "The model has no finite answer to this question.",
    "429": "Too fast; Retry-After says when to try again.",
    "500": "The model failed; the message says how.",
}


def _describe_success(text: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"200": {"description": text, "content": {"application/json": {"schema": schema}}}}


def _describe_tensors(side: str) -> dict[str, Any]:
    return {
        "type": "object",
        "required": [side],
        "properties": {side: {"type": "array", "items": _TENSOR}},
    }


def describe_api(name: str, width: int, outputs: int | None, *, token: bool) -> dict[str, Any]:
    """The OpenAPI document of a served model."""
    plain = {"type": "object"}
    model = f"/v2/models/{name}"
    batch = (
        f"A batch of sequences of width {width}, at most as large as the server allows; answers"
        " have "
    )
    batch += (
        f"{outputs or 'a fixed number of'} numbers each. Bytes may follow the JSON head instead of"
        " `data`, with "
    )
    batch += "its length in the header Inference-Header-Content-Length."
    refusals = {code: {"description": text} for code, text in _REFUSALS.items()}
    content = {
        kind: {"schema": _describe_tensors("inputs")}
        for kind in ("application/json", "application/octet-stream")
    }
    paths: dict[str, Any] = {
        "/v2": {
            "get": {
                "summary": "The server",
                "responses": _describe_success("Its name, version, extensions.", plain),
            }
        },
        "/v2/health/live": {
            "get": {"summary": "Is it running?", "responses": _describe_success("It is.", plain)}
        },
        "/v2/health/ready": {
            "get": {"summary": "Does it answer?", "responses": _describe_success("It does.", plain)}
        },
        model: {
            "get": {
                "summary": "The model",
                "responses": _describe_success("Its inputs and outputs.", plain),
            }
        },
        f"{model}/ready": {
            "get": {
                "summary": "Does the model answer?",
                "responses": _describe_success("It does.", plain),
            }
        },
        f"{model}/infer": {
            "post": {
                "summary": "Ask a batch",
                "description": batch,
                "requestBody": {"required": True, "content": content},
                "responses": (
                    _describe_success(
                        "One row of answers per sequence.", _describe_tensors("outputs")
                    )
                    | refusals
                ),
            }
        },
    }
    made: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": f"keyhole: {name}", "version": __version__},
    }
    made["paths"] = paths
    if token:
        made["components"] = {"securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}}}
        made["security"] = [{"bearer": []}]
    return made


def draw_api_page(described: dict[str, Any]) -> str:
    """The document as a page."""
    rows = "".join(
        _format_operation(f"{method.upper()} {path}", work)
        for path, methods in described["paths"].items()
        for method, work in methods.items()
    )
    title = escape(described["info"]["title"])
    style = (
        "body{font:16px/1.5 system-ui;max-width:48rem;margin:2rem auto;padding:0 1rem}"
        "h2{font:600 1rem monospace}"
    )
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>'
        f"<style>{style}</style><h1>{title}</h1><p>The Open Inference Protocol V2."
        f' <a href="openapi.json">openapi.json</a></p>{rows}</html>'
    )


def _format_operation(title: str, work: dict[str, Any]) -> str:
    responses = "".join(
        f"<li><b>{code}</b> {escape(said['description'])}</li>"
        for code, said in work["responses"].items()
    )
    said = f"{escape(work['summary'])}. {escape(work.get('description', ''))}"
    return f"<h2>{escape(title)}</h2><p>{said}</p><ul>{responses}</ul>"
