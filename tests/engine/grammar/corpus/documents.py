"""Documents and records."""

from tests.engine.grammar.corpus.builders import (
    BOOL,
    INT,
    MAP,
    MONEY,
    NUM,
    Schema,
    arr,
    closed,
    defs,
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

DOCUMENTS: dict[str, Schema] = {
    "article": obj(
        "title body",
        title=text(1, 20),
        body=arr(
            tagged(
                "type",
                text=obj("*", content=text(0, 20)),
                image=obj("*", url=fmt("uri"), width=INT),
            ),
            1,
            3,
        ),
    ),
    "byline": obj(
        "*",
        authors=arr(obj("name", name=text(1), mail=maybe(fmt("email"))), 1, 2),
        published=fmt("date"),
    ),
    "quotation": obj("*", text=text(1, 20), source=maybe(text(1)), year=span(1400, 2100)),
    "gallery": obj(
        "items",
        items=arr(
            obj("url", url=fmt("uri-reference"), caption=text(0, 15), credit=maybe(text(1))), 1, 2
        ),
    ),
    "taxonomy": defs(
        obj("*", sections=arr(ref("section"), 1, 2)),
        section=obj("name", name=text(1, 6), parent=maybe(text(1, 6)), primary=BOOL),
    ),
    "table of text": obj("*", header=arr(text(0, 6), 2, 2), rows=arr(arr(text(0, 6), 2, 2), 0, 2)),
    "person": closed(
        "name",
        name=closed("*", first=text(1, 8), last=text(1, 8)),
        born=maybe(fmt("date")),
        phones=arr(like("^\\+[0-9]{6,12}$"), 0, 2),
    ),
    "resume": obj(
        "*",
        name=text(1, 10),
        jobs=arr(
            obj("*", title=text(1, 10), since=span(1950, 2030), until=maybe(span(1950, 2030))), 0, 2
        ),
        skills=arr(one_of("python", "c", "sql"), 0, 3),
    ),
    "invoice": closed(
        "*",
        number=like("^INV-[0-9]{4}$"),
        date=fmt("date"),
        lines=arr(
            closed("*", text=text(1, 10), price=span(0, 9999, "number"), count=span(1, 99)), 1, 2
        ),
        paid=BOOL,
    ),
    "contract": obj(
        "*",
        parties=arr(text(1, 8), 2, 2),
        clauses=arr(obj("*", number=span(1, 99), text=text(0, 15)), 1, 2),
        signed=maybe(fmt("date")),
    ),
    "book": closed(
        "isbn title",
        isbn=like("^97[89]-[0-9]{10}$"),
        title=text(1, 15),
        pages=span(1, 3000),
        subjects=arr(text(1, 8), 0, 2),
    ),
    "citation": either(
        obj("*", doi=like("^10\\.[0-9]{4}/[a-z0-9]{1,8}$")),
        obj("*", url=fmt("uri"), seen=fmt("date")),
    ),
    "quiz": obj(
        "questions",
        questions=arr(
            obj("*", question=text(1, 15), choices=arr(text(1, 6), 2, 4), right=span(0, 3)), 1, 2
        ),
    ),
    "chat log": arr(
        obj(
            "*",
            role=one_of("user", "assistant", "system"),
            content=either(
                text(0, 15), arr(obj("*", type={"const": "text"}, text=text(0, 8)), 1, 2)
            ),
        ),
        1,
        3,
    ),
    "product": obj(
        "id name",
        id=either(INT, fmt("uuid")),
        name=text(1, 10),
        price=MONEY,
        stock=maybe(INT),
        tags=arr(text(1, 5), 0, 2),
        size={"type": "array", "prefixItems": [NUM, NUM, NUM], "items": False, "minItems": 3},
    ),
    "geo feature": closed(
        "*",
        type={"const": "Feature"},
        geometry=tagged(
            "type",
            Point=obj("*", coordinates=arr(NUM, 2, 2)),
            LineString=obj("*", coordinates=arr(arr(NUM, 2, 2), 2, 3)),
        ),
        properties=maybe(MAP),
    ),
    "opening hours": {
        "type": "object",
        "propertyNames": {"pattern": "^(mon|tue|wed|thu|fri|sat|sun)$"},
        "additionalProperties": like("^[0-2][0-9]:[0-5][0-9]-[0-2][0-9]:[0-5][0-9]$"),
    },
    "scores": {
        "type": "object",
        "additionalProperties": span(0, 100),
        "minProperties": 1,
        "maxProperties": 3,
    },
    "any value": obj("*", key=text(1, 5), value=True),
    "outline": defs(
        arr(ref("heading"), 1, 2),
        heading=obj("title", title=text(1, 6), level=span(1, 6), parts=arr(ref("heading"), 0, 1)),
    ),
    "unicode": closed("*", **{"имя": text(1, 5), "größe": span(1, 9), "色": one_of("赤", "青")}),
    "nothing but constants": closed(
        "*", a={"const": 1}, b={"const": [True, None]}, c={"const": "x"}
    ),
    "types": closed(
        "*",
        a={"type": ["integer", "null"]},
        b={"type": ["string", "boolean"]},
        c={"type": ["array", "null"], "items": INT},
    ),
    "deep": obj("*", a=obj("*", b=obj("*", c=obj("*", d=obj("*", e=arr(obj("*", f=BOOL), 1, 2)))))),
    "verdict": closed("*", correct=BOOL, reason=text(0, 20), score=one_of(0, 0.5, 1)),
    "bounds of both kinds": closed(
        "*",
        a={"type": "number", "exclusiveMinimum": -1, "exclusiveMaximum": 1},
        b=span(-2.5, 2.5, "number"),
        c={"type": "integer", "minimum": 100},
        d={"type": "integer", "maximum": -100},
    ),
    "translations": {
        "type": "object",
        "propertyNames": {"pattern": "^[a-z]{2}$"},
        "additionalProperties": obj("text", text=text(0, 8), checked=BOOL),
        "maxProperties": 2,
    },
    "poll": obj(
        "*",
        question=text(1, 10),
        answers=arr(text(1, 5), 2, 4),
        until=maybe(fmt("date-time")),
        several=BOOL,
    ),
    "links": arr(
        obj("href", href=either(fmt("uri"), fmt("uri-template")), rel=one_of("self", "next")), 0, 2
    ),
    "changelog": arr(
        obj(
            "*",
            version=like(r"^[0-9]\.[0-9]\.[0-9]$"),
            added=arr(text(1, 8), 0, 2),
            date=maybe(fmt("date")),
        ),
        1,
        2,
    ),
}
