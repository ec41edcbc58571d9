"""Settings of programs."""

from tests.engine.grammar.corpus.builders import (
    BOOL,
    INT,
    MAP,
    NULL,
    TEXT,
    Schema,
    arr,
    closed,
    either,
    fmt,
    like,
    maybe,
    obj,
    one_of,
    ref,
    span,
    tagged,
    text,
)

SETTINGS: dict[str, Schema] = {
    "server": closed(
        "port", host=either(fmt("hostname"), fmt("ipv4")), port=span(1, 65535), tls=BOOL
    ),
    "log level": obj("*", level=one_of("debug", "info", "warn", "error"), json=BOOL),
    "log levels by name": {
        "type": "object",
        "additionalProperties": one_of("debug", "info", "warn"),
    },
    "editor": closed(
        "", tab=span(1, 8), spaces=BOOL, rulers=arr(span(40, 120), 0, 3), theme=text(1)
    ),
    "linter": closed(
        "",
        rules={"type": "object", "additionalProperties": one_of("off", "warn", "error", 0, 1, 2)},
    ),
    "formatter": closed("", width=span(40, 200), quotes=one_of("single", "double"), semi=BOOL),
    "package": obj(
        "name version",
        name=like("^[a-z][a-z0-9-]{0,12}$"),
        version=like(r"^[0-9]{1,3}\.[0-9]{1,3}\.[0-9]{1,3}$"),
        private=BOOL,
        license=one_of("MIT", "Apache-2.0", "BSD-3-Clause"),
        scripts=MAP,
    ),
    "dependencies": {
        "type": "object",
        "additionalProperties": like(r"^[~^]?[0-9]{1,2}\.[0-9]{1,2}$"),
    },
    "cache": closed(
        "size", size=span(0, 4096), policy=one_of("lru", "lfu", "none"), seconds=maybe(INT)
    ),
    "retry": closed(
        "*", times=span(0, 10), pause=span(0, 60, "number"), on=arr(one_of(429, 500, 503), 0, 3)
    ),
    "limits": closed("", cpu=like("^[0-9]{1,4}m$"), memory=like("^[0-9]{1,4}(Ki|Mi|Gi)$")),
    "database url": obj("url", url=fmt("uri"), pool=span(1, 64)),
    "proxy": either(NULL, obj("*", http=fmt("uri"), none=arr(TEXT, 0, 2))),
    "feature flags": {"type": "object", "additionalProperties": BOOL, "maxProperties": 4},
    "environment": {
        "type": "object",
        "patternProperties": {"^[A-Z_]{1,10}$": TEXT},
        "additionalProperties": False,
    },
    "keys by pattern": {
        "type": "object",
        "patternProperties": {"^k[0-9]$": span(0, 9)},
        "additionalProperties": False,
    },
    "named ports": {
        "type": "object",
        "patternProperties": {"^[a-z]{1,6}$": span(1, 65535)},
        "additionalProperties": False,
    },
    "targets": obj("targets", targets=arr(one_of("linux", "mac", "windows"), 1, 3), strip=BOOL),
    "compiler": closed(
        "",
        target=one_of("es5", "es2020", "esnext"),
        strict=BOOL,
        lib=arr(TEXT, 0, 2),
        paths={"type": "object", "additionalProperties": arr(TEXT, 1, 2)},
    ),
    "workflow": obj(
        "on jobs",
        on=either(one_of("push", "pull_request"), arr(one_of("push", "pull_request"), 1, 2)),
        jobs={"type": "object", "additionalProperties": ref("job"), "maxProperties": 2},
    )
    | {
        "$defs": {
            "job": obj(
                "steps",
                os=one_of("linux", "mac"),
                steps=arr(either(obj("*", run=text(1)), obj("*", uses=text(1))), 1, 2),
            )
        }
    },
    "schedule": obj("cron", cron=like(r"^([0-9]{1,2}|\*) ([0-9]{1,2}|\*) \* \* \*$"), paused=BOOL),
    "backup": tagged(
        "to",
        disk=obj("*", path=like("^/[a-z]{1,8}$")),
        cloud=obj("bucket", bucket=like("^[a-z-]{3,10}$"), region=text(1, 9)),
    ),
    "window": closed(
        "*",
        width={"type": "integer", "exclusiveMinimum": 0, "maximum": 10000},
        height={"type": "integer", "exclusiveMinimum": 0, "maximum": 10000},
    ),
    "colors": closed(
        "", primary=like("^#([0-9a-f]{3}|[0-9a-f]{6})$"), dark=BOOL, alpha=span(0, 1, "number")
    ),
    "keyboard": arr(obj("*", key=like("^(ctrl|alt)\\+[a-z]$"), command=text(1)), 0, 3),
    "volumes": arr(like("^/[a-z]{1,6}:/[a-z]{1,6}(:ro)?$"), 0, 3),
    "locale": closed(
        "language", language=like("^[a-z]{2}$"), region=maybe(like("^[A-Z]{2}$")), week=span(0, 6)
    ),
    "sparse": closed("", a=INT, b=INT, c=INT, d=INT, e=INT, f=INT),
    "wide": closed("*", **{f"field_{number}": maybe(INT) for number in range(20)}),
    "version or latest": either({"const": "latest"}, like("^[0-9]{1,3}$")),
    "sampling": closed(
        "",
        temperature=span(0, 2, "number"),
        top_p={"type": "number", "exclusiveMinimum": 0, "maximum": 1},
        stop=either(TEXT, arr(TEXT, 1, 2)),
    ),
}
