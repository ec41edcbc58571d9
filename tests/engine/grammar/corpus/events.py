"""Events of analytics."""

from tests.engine.grammar.corpus.builders import (
    BOOL,
    INT,
    MAP,
    MONEY,
    NULL,
    NUM,
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

EVENTS: dict[str, Schema] = {
    "click": closed("x y", x=INT, y=INT, button=one_of(0, 1, 2), target=maybe(text(0, 10))),
    "page view": closed(
        "url", url=fmt("uri"), referrer=maybe(fmt("uri")), seconds=span(0, 3600, "number")
    ),
    "session": closed(
        "*", id=fmt("uuid"), user=maybe(fmt("uuid")), started=fmt("date-time"), pages=INT
    ),
    "geolocation": closed(
        "latitude longitude",
        latitude=span(-90, 90, "number"),
        longitude=span(-180, 180, "number"),
        accuracy=maybe(NUM),
    ),
    "device": closed(
        "os",
        os=one_of("ios", "android", "web"),
        version=like(r"^[0-9]{1,2}(\.[0-9]{1,2}){0,2}$"),
        carrier=maybe(text(0, 10)),
    ),
    "purchase": closed(
        "*",
        order=like("^[A-Z0-9]{6,8}$"),
        total=MONEY,
        items=arr(closed("*", sku=like("^[0-9]{4}$"), count=span(1, 9)), 1, 3),
    ),
    "signup": closed(
        "method", method=one_of("mail", "google", "github"), referral=maybe(like("^[a-z0-9]{5}$"))
    ),
    "experiment": closed(
        "*", name=text(1), variant=one_of("control", "a", "b"), weight=span(0, 1, "number")
    ),
    "error": closed(
        "message", message=text(0, 30), stack=arr(text(0, 12), 0, 3), code=either(INT, TEXT)
    ),
    "timing": closed("*", category=text(1, 8), ms=span(0, 60000)),
    "heartbeat": closed("*", at=fmt("date-time"), ok=BOOL, load=arr(span(0, 64, "number"), 3, 3)),
    "consent": closed(
        "*",
        basis=one_of("consent", "contract", "legal_obligation"),
        version=text(1, 5),
        domains=arr(fmt("hostname"), 1, 2),
    ),
    "video": closed(
        "action",
        action=one_of("play", "pause", "seek"),
        position=span(0, 7200, "number"),
        quality=maybe(one_of("480p", "720p", "1080p")),
    ),
    "search event": closed("terms", terms=arr(text(1, 8), 1, 3), filters=maybe(MAP), results=INT),
    "form": closed(
        "*",
        id=text(1),
        elements=arr(
            closed(
                "name type",
                name=text(1),
                value=maybe(text(0, 8)),
                type=one_of("text", "email", "checkbox"),
            ),
            0,
            2,
        ),
    ),
    "address change": obj("*", old=maybe(ref("address")), new=ref("address"))
    | {
        "$defs": {
            "address": closed("city", street=text(0, 12), city=text(1, 10), code=like("^[0-9]{5}$"))
        }
    },
    "scroll": closed("*", least=span(0, 5000), most=span(0, 5000)),
    "rating": closed("*", stars=one_of(1, 2, 3, 4, 5), by=fmt("uuid")),
    "sensor": closed("*", id=span(0, 255), celsius=span(-40, 85, "number"), at=fmt("time")),
    "ticket": tagged(
        "status", open=obj("*", by=text(1)), closed=obj("*", by=text(1), after=fmt("duration"))
    ),
    "addresses": closed("*", v4=fmt("ipv4"), v6=fmt("ipv6"), seen=span(0, 1000)),
    "legacy": {
        "definitions": {"id": span(1, 999)},
        **closed("*", id={"$ref": "#/definitions/id"}, parent={"$ref": "#/definitions/id"}),
    },
    "open event": {
        **obj("type", type=text(1, 8)),
        "additionalProperties": either(TEXT, INT, BOOL, NULL),
    },
    "batch": arr(tagged("t", a=obj("*", n=INT), b=obj("*", s=text(0, 5))), 1, 3),
    "sparse": closed("", a=INT, b=INT, c=INT, d=INT, e=INT, f=INT),
    "wide": closed("*", **{f"field_{number}": maybe(INT) for number in range(20)}),
}
