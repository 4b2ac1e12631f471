"""Compares definitions of process types: the registered one with that of the code, both in a normal form."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

_RETRY_POLICY = {
    "initialIntervalSeconds": 1,
    "backoffCoefficient": 2,
    "maximumIntervalSeconds": 100,
    "maximumAttempts": 0,
    "maximumAttemptsDurationSeconds": 0,
}
_SETS = ("localAttributes", "localQueues", "globalQueues")


def normal(definition: Mapping[str, Any]) -> dict[str, Any]:
    """The normal form of a definition: defaults filled in, sets sorted, nulls left out, tables by their names."""
    made = {key: value for key, value in definition.items() if value is not None}
    made["states"] = {name: _state(config or {}) for name, config in (made.get("states") or {}).items()}
    made["globalAttributes"] = {table["table"]: _table(table) for table in made.get("globalAttributes") or ()}
    made.setdefault("globalQueues", [])
    made.setdefault("history", "full")
    made.setdefault("strictAnswers", False)
    made.setdefault("timeoutSeconds", 0)
    if "rpcs" in made:
        made["rpcs"] = {name: _loadings(config or {}) for name, config in made["rpcs"].items()}
    for key in _SETS:
        if key in made:
            made[key] = sorted(set(made[key]))
    return made


def differences(registered: Mapping[str, Any], coded: Mapping[str, Any]) -> list[str]:
    """What the code changes of the registered definition: one line for each place."""
    return list(_differences("", normal(registered), normal(coded)))


def _differences(path: str, old: Any, new: Any) -> Iterator[str]:
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted(old.keys() | new.keys()):
            place = f"{path}.{key}" if path else key
            if key not in new:
                yield f"{place} was removed"
            elif key not in old:
                yield f"{place} is new" if new[key] in ({}, []) else f"{place} is new: {_short(new[key])}"
            else:
                yield from _differences(place, old[key], new[key])
    elif isinstance(old, list) and isinstance(new, list) and all(isinstance(one, str) for one in [*old, *new]):
        yield from (f"{path}: {one} was removed" for one in old if one not in new)
        yield from (f"{path}: {one} is new" for one in new if one not in old)
    elif old != new:
        yield f"{path}: {_short(old)} -> {_short(new)}"


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _table(table: Mapping[str, Any]) -> dict[str, Any]:
    key = table.get("primaryKey")
    # `relation` is the table's oid, which the server adds.
    made = {k: v for k, v in table.items() if v is not None and k != "relation"}
    return made | {"primaryKey": [key] if isinstance(key, str) else key}


def _state(config: Mapping[str, Any]) -> dict[str, Any]:
    made = _loadings(config)
    for key in ("waitUntilApiRetryPolicy", "executeApiRetryPolicy"):
        if key in made:
            made[key] = _RETRY_POLICY | {k: v for k, v in made[key].items() if v is not None}
    recovery = made.get("stateFailureRecoveryOptions")
    if recovery is not None:
        recovery = {"policy": "FAIL_PROCESS_ON_STATE_FAILURE", **{k: v for k, v in recovery.items() if v is not None}}
        if "stateFailureProceedStateConfig" in recovery:
            recovery["stateFailureProceedStateConfig"] = _state(recovery["stateFailureProceedStateConfig"])
        made["stateFailureRecoveryOptions"] = recovery
    return made


def _loadings(config: Mapping[str, Any]) -> dict[str, Any]:
    made = {key: value for key, value in config.items() if value is not None}
    for key, value in made.items():
        if "Load" in key or key.startswith("load"):
            loading = {"policy": "ALL", "lockType": "NO_LOCKING", **{k: v for k, v in value.items() if v is not None}}
            made[key] = loading | {"names": sorted(loading.get("names", ()))}
    return made
