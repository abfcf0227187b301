"""What a tenant may use and what it uses."""

from __future__ import annotations

from api.limits import JOBS_LIMIT, REQUESTS_LIMIT, limits_of
from api.requests import EMPTY_QUERY, Call
from api.responses import Answer
from api.stats import tenant_stats


async def usage(call: Call) -> Answer:
    """GET /v1/usage"""
    call.query(EMPTY_QUERY)
    service = call.service
    limits = limits_of(await service.tenants.tenants.get(call.tenant_id))
    used = {
        REQUESTS_LIMIT: service.rates.used(call.tenant_id, limits[REQUESTS_LIMIT]),
        JOBS_LIMIT: await service.counts.jobs(call.tenant_id),
    }
    return Answer({"limits": limits, "used": used, "runs": await tenant_stats(call)})
