"""Manifests of a cluster, and trees."""

from tests.engine.grammar.corpus.builders import (
    BOOL,
    INT,
    MAP,
    TEXT,
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

MANIFESTS: dict[str, Schema] = {
    "metadata": obj(
        "name", name=like("^[a-z0-9]([a-z0-9-]{0,10}[a-z0-9])?$"), labels=MAP, annotations=MAP
    ),
    "container": obj(
        "name image",
        name=text(1),
        image=text(1, 20),
        ports=arr(obj("port", port=span(1, 65535), protocol=one_of("TCP", "UDP")), 0, 2),
    ),
    "probe": either(
        obj("*", http=obj("*", path=like("^/[a-z]{0,8}$"), port=span(1, 65535))),
        obj("*", exec=arr(TEXT, 1, 2)),
    ),
    "pod": defs(
        obj(
            "kind spec",
            kind={"const": "Pod"},
            spec=obj(
                "containers",
                containers=arr(ref("container"), 1, 2),
                restart=one_of("Always", "Never"),
            ),
        ),
        container=obj("*", name=text(1), image=text(1), env=arr(ref("variable"), 0, 2)),
        variable=obj("*", name=like("^[A-Z]{1,6}$"), value=text(0, 8)),
    ),
    "deployment": defs(
        obj(
            "*",
            apiVersion={"const": "apps/v1"},
            kind={"const": "Deployment"},
            replicas=span(0, 100),
            selector=ref("labels"),
            strategy=ref("strategy"),
        ),
        labels={"type": "object", "additionalProperties": text(1, 8), "maxProperties": 3},
        strategy=tagged(
            "type",
            Recreate=obj(),
            RollingUpdate=obj("*", surge=either(span(0, 10), like("^[0-9]{1,2}%$"))),
        ),
    ),
    "service": obj(
        "*",
        type=one_of("ClusterIP", "NodePort", "LoadBalancer"),
        ports=arr(
            obj("*", port=span(1, 65535), target=either(span(1, 65535), like("^[a-z]{1,8}$"))), 1, 2
        ),
    ),
    "ingress rules": arr(
        obj(
            "host paths",
            host=fmt("hostname"),
            paths=arr(obj("*", path=like("^/[a-z]{0,6}$"), service=text(1)), 1, 2),
        ),
        1,
        2,
    ),
    "volume": tagged(
        "kind",
        emptyDir=obj(),
        hostPath=obj("*", path=like("^/[a-z]{1,8}$")),
        secret=obj("*", name=text(1)),
    ),
    "autoscaler": closed(
        "*",
        least=span(1, 10),
        most=span(1, 100),
        metrics=arr(obj("*", name=one_of("cpu", "memory"), percent=span(1, 100)), 1, 2),
    ),
    "tolerations": arr(
        closed("operator", key=text(0, 8), operator=one_of("Exists", "Equal"), seconds=maybe(INT)),
        0,
        2,
    ),
    "config map": obj(
        "data",
        data={
            "type": "object",
            "additionalProperties": text(0, 15),
            "minProperties": 1,
            "maxProperties": 3,
        },
    ),
    "secret": closed(
        "*",
        type={"const": "Opaque"},
        data={"type": "object", "additionalProperties": like("^[A-Za-z0-9+/]{0,12}={0,2}$")},
    ),
    "job": obj(
        "template",
        parallelism=span(1, 8),
        deadline=maybe(span(1, 3600)),
        template=obj("*", restart=one_of("Never", "OnFailure")),
    ),
    "network policy": obj(
        "*",
        ingress=arr(
            obj(
                "",
                from_=arr(like(r"^[0-9]{1,3}(\.[0-9]{1,3}){3}/[0-9]{1,2}$"), 0, 2),
                ports=arr(span(1, 65535), 0, 2),
            ),
            0,
            2,
        ),
    ),
    "role": obj(
        "rules",
        rules=arr(
            closed(
                "*",
                verbs=arr(one_of("get", "list", "watch", "*"), 1, 3),
                resources=arr(text(1), 1, 2),
            ),
            1,
            2,
        ),
    ),
    "conditions": arr(
        obj(
            "*",
            type=one_of("Ready", "Failed"),
            status=one_of("True", "False", "Unknown"),
            at=fmt("date-time"),
        ),
        0,
        2,
    ),
    "quantity": either(span(0, 1000), like("^[0-9]{1,4}(\\.[0-9]{1,2})?(m|Ki|Mi|Gi)?$")),
    "affinity terms": defs(
        arr(ref("term"), 1, 2),
        term=obj("*", weight=span(1, 100), match=arr(ref("expression"), 1, 2)),
        expression=obj("*", key=text(1), operator=one_of("In", "NotIn"), values=arr(text(1), 0, 2)),
    ),
    "custom resource": obj(
        "*",
        group=fmt("hostname"),
        scope=one_of("Cluster", "Namespaced"),
        versions=arr(obj("*", name=like("^v[0-9](beta[0-9])?$"), served=BOOL), 1, 2),
    ),
    "stage": defs(
        obj("*", root=ref("step")), step=obj("name", name=text(1, 6), then=arr(ref("step"), 0, 1))
    ),
    "expression tree": defs(
        ref("node"),
        node=either(
            span(-9, 9), obj("*", op=one_of("+", "-"), left=ref("leaf"), right=ref("leaf"))
        ),
        leaf=either(span(-9, 9), obj("*", negate=span(0, 9))),
    ),
    "file tree": defs(
        ref("folder"),
        folder=obj(
            "name", name=text(1, 6), folders=arr(ref("folder"), 0, 1), files=arr(text(1, 6), 0, 2)
        ),
    ),
}
