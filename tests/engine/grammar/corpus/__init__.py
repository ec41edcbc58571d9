"""86 JSON schemas as clients write them: arguments of functions, settings, manifests. The mix
of features is JSONSchemaBench's; the schemas are ours."""

from tests.engine.grammar.corpus.builders import Schema
from tests.engine.grammar.corpus.functions import FUNCTIONS
from tests.engine.grammar.corpus.manifests import MANIFESTS
from tests.engine.grammar.corpus.settings import SETTINGS

CORPUS: dict[str, Schema] = {
    f"{part}/{name}": schema
    for part, schemas in {
        "function": FUNCTIONS,
        "setting": SETTINGS,
        "manifest": MANIFESTS,
    }.items()
    for name, schema in schemas.items()
}
