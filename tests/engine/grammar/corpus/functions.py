"""Arguments of functions that a model calls."""

from tests.engine.grammar.corpus.builders import (
    BOOL,
    INT,
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
    span,
    tagged,
    text,
)

_UNITS = one_of("celsius", "fahrenheit", "kelvin")
_POINT = closed("*", lat=span(-90, 90, "number"), lon=span(-180, 180, "number"))

FUNCTIONS: dict[str, Schema] = {
    "weather": obj("city", city=TEXT, unit=_UNITS),
    "weather at a point": obj("at", at=_POINT, unit=_UNITS, hours=span(1, 48)),
    "forecast": obj("*", city=text(1), days=span(1, 14), detail=BOOL),
    "convert currency": obj("*", amount=NUM, source=like("^[A-Z]{3}$"), target=like("^[A-Z]{3}$")),
    "send mail": obj(
        "to subject", to=arr(fmt("email"), 1, 3), subject=text(1, 20), body=text(0, 30)
    ),
    "book table": obj("*", guests=span(1, 12), when=fmt("date-time"), outside=BOOL),
    "find flights": obj(
        "origin target date",
        origin=like("^[A-Z]{3}$"),
        target=like("^[A-Z]{3}$"),
        date=fmt("date"),
        cabin=one_of("economy", "business", "first"),
        stops=maybe(span(0, 2)),
    ),
    "search": obj("query", query=TEXT, limit=span(1, 100), sort=one_of("new", "top", "relevance")),
    "search with filters": obj(
        "query",
        query=text(1),
        filters=arr(
            obj("*", field=one_of("year", "author"), op=one_of("=", "<", ">"), value=TEXT), 0, 2
        ),
    ),
    "timer": closed("seconds", seconds=span(1, 86400), label=text(0, 10)),
    "alarm": closed(
        "*",
        time=like("^([01][0-9]|2[0-3]):[0-5][0-9]$"),
        days=arr(one_of("mon", "tue", "wed"), 1, 3),
    ),
    "calculate": obj("*", op=one_of("add", "sub", "mul", "div"), left=NUM, right=NUM),
    "statistics": obj("values", values=arr(NUM, 1, 5), kind=one_of("mean", "median", "mode")),
    "translate": obj("*", text=text(1, 20), to=like("^[a-z]{2}(-[A-Z]{2})?$")),
    "play music": either(obj("*", song=text(1)), obj("*", artist=text(1), shuffle=BOOL)),
    "create user": closed(
        "name mail", name=text(1, 10), mail=fmt("email"), age=maybe(span(0, 130)), admin=BOOL
    ),
    "delete files": obj("paths", paths=arr(like("^/[a-z/]{1,12}$"), 1, 3), force=BOOL),
    "draw": obj(
        "*", shape=one_of("circle", "square"), size=span(1, 100), color=like("^#[0-9a-f]{6}$")
    ),
    "move robot": tagged(
        "kind",
        walk=obj("*", steps=span(1, 20)),
        turn=obj("*", degrees=span(-180, 180)),
        stop=obj(),
    ),
    "query database": obj(
        "table",
        table=like("^[a-z_]{1,10}$"),
        columns=arr(like("^[a-z_]{1,8}$"), 1, 4),
        where=maybe(obj("*", column=like("^[a-z_]{1,8}$"), equals=either(TEXT, INT))),
        limit=span(1, 1000),
    ),
    "no arguments": closed(),
    "one flag": closed("on", on=BOOL),
    "nested choice": obj(
        "*",
        pay=either(obj("*", card=like("^[0-9]{4}$")), obj("*", iban=like("^[A-Z]{2}[0-9]{6}$"))),
    ),
    "tags": obj("tags", tags=arr(one_of("a", "b", "c"), 0, 3)),
    "pair": {"type": "array", "prefixItems": [TEXT, INT], "items": False, "minItems": 2},
    "matrix": obj("rows", rows=arr(arr(span(0, 9), 2, 2), 1, 3)),
    "event range": obj("*", start=fmt("date-time"), end=fmt("date-time"), zone=text(1, 8)),
    "recipe": obj(
        "*",
        name=text(1),
        minutes=span(1, 240),
        parts=arr(obj("*", what=text(1), grams=span(1, 999)), 1, 3),
    ),
    "review": obj("stars", stars=span(1, 5), comment=maybe(text(0, 30)), recommend=BOOL),
    "grade": obj("*", score=span(0, 1, "number"), letter=one_of("A", "B", "C", "D", "F")),
    "classify": obj("*", label=one_of("spam", "ham", "unsure"), confidence=span(0, 1, "number")),
    "entities": obj(
        "entities", entities=arr(obj("*", text=text(1), type=one_of("PER", "ORG", "LOC")), 0, 3)
    ),
    "steps": obj(
        "*",
        steps=arr(obj("*", explanation=text(0, 20), output=text(0, 10)), 1, 3),
        answer=text(0, 10),
    ),
}
