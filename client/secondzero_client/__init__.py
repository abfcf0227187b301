"""For tenants of Second Zero: the API, workers that run functions, receivers that let each call through once."""

from secondzero_client.calls import etag
from secondzero_client.client import AsyncClient, Client
from secondzero_client.errors import (
    ApiError,
    Conflict,
    Invalid,
    NotAllowed,
    NotFound,
    PreconditionFailed,
    SecondZeroError,
    Unavailable,
)
from secondzero_client.retries import RetryPolicy

__all__ = [
    "ApiError",
    "AsyncClient",
    "Client",
    "Conflict",
    "Invalid",
    "NotAllowed",
    "NotFound",
    "PreconditionFailed",
    "RetryPolicy",
    "SecondZeroError",
    "Unavailable",
    "etag",
]
